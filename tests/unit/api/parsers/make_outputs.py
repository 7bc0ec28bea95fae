#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tool_outputs.jsonl: outputs as models write them, and what a whole parse must find in each.

What is expected comes from a plain parse of the whole text with regular expressions and json.loads, as vllm_api.md 11.2
describes it, and not from the code under test. Run it and commit the result when a case is added.
"""
import itertools
import json
import pathlib
import re

ARGUMENTS = [
    '{"city": "Paris"}',
    '{"city":"Paris","unit":"celsius"}',
    "{}",
    '{ }',
    '{"a": {"b": {"c": [1, 2, {"d": "}}"}]}}}',
    '{"text": "he said \\"hi\\" and {left}"}',
    '{"text": "日本語 🌍 naïve", "emoji": "👩‍👩‍👧"}',
    '{"text": "\\u65e5\\u672c \\ud83c\\udf0d\\n\\ttab"}',
    '{"n": -12.5e-3, "m": 0, "k": 1E+9, "big": 12345678901234567890}',
    '{"flags": [true, false, null], "empty": [], "object": {}}',
    '{"code": "<b>x</b> <tool> </tool_cal"}',
    '{"nested": "{\\"name\\": \\"g\\", \\"arguments\\": {}}"}',
    '{\n  "pretty": [\n    1,\n    2\n  ]\n}',
    '"a string"',
    "42",
    "[1, [2, [3]]]",
    "null",
]
BROKEN = [
    '{"name": "f", "arguments": {"a": 1}',  # one brace too few
    '{"name": "f", "arguments": {"a": 1}}}',  # one too many
    '{"name": "f"}',
    '{"arguments": {}}',
    '{"name": "f", "arguments": {"a": 01}}',
    '{"name": "f", "arguments": {"a": tru}}',
    '{"name": "f", "arguments": {"a": "open}}',
    '{"name": "f", "arguments": {"a": 1,}}',
    "{'name': 'f', 'arguments': {}}",
    '{"name": f, "arguments": {}}',
    '{"name": 5, "arguments": {}}',
    "not JSON at all",
    "",
    '[{"name": "f", "arguments": {}}]',
    '{"name": "f", "arguments": {"a": "line\nbreak"}}',
    '{"name": "f" "arguments": {}}',
]
BEFORE = ["", "I will look that up.\n", "価格を調べます🔎 ", "a < b <tool <tool_cal> "]


def strict(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def as_call(value, keys):
    """(name, arguments) or None."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    for key in keys:
        if key in value:
            return {"name": value["name"], "arguments": value[key]}
    return None


def result(text, content, calls):
    if calls is None or not calls:
        return {"content": text, "calls": []}
    return {"content": content, "calls": calls}


def parse_hermes(text):
    if "<tool_call>" not in text:
        return result(text, text, [])
    regions = re.findall(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", text, re.DOTALL)
    calls = []
    for closed, opened in regions:
        # A closing tag that was cut off is one all the same.
        opened = opened[: len(opened) - max(n for n in range(12) if opened.endswith("</tool_call>"[:n]))]
        try:
            call = as_call(strict(closed or opened), ["arguments"])
        except ValueError:
            call = None
        if call is None:
            return result(text, text, None)
        calls.append(call)
    return result(text, text[: text.find("<tool_call>")], calls)


def parse_llama(text):
    body = text.strip()
    if body.startswith("<|python_tag|>"):
        body = body[len("<|python_tag|>"):].strip()
    if not body.startswith("{"):
        return result(text, text, [])
    decoder = json.JSONDecoder()
    calls = []
    while body:
        try:
            value, end = decoder.raw_decode(body)
        except ValueError:
            return result(text, text, None)
        call = as_call(value, ["parameters", "arguments"])
        if call is None:
            return result(text, text, None)
        calls.append(call)
        body = body[end:].strip()
        if body.startswith(";"):
            body = body[1:].strip()
            if not body:
                break
        elif body:
            return result(text, text, None)
    return result(text, "", calls)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
    "o": {"type": "object"}, "l": {"type": "array"}, "u": {"type": ["null", "integer"]}, "any": {"anyOf": []}}}}}]


def convert(key, text):
    properties = TOOLS[0]["function"]["parameters"]["properties"]
    kind = properties.get(key, {"type": "string"}).get("type", "object")
    kind = [k for k in kind if k != "null"][0] if isinstance(kind, list) else kind
    if text.lower() == "null":
        return None
    try:
        if kind == "integer" and re.fullmatch(r"-?(0|[1-9]\d*)", text):
            return int(text)
        if kind == "number" and re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", text):
            return json.loads(text)
        if kind == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in ("object", "array"):
            return strict(text)
    except ValueError:
        pass
    return text


def parse_coder(text):
    opened = re.search(r"<tool_call>|<function=", text)
    if not opened:
        return result(text, text, [])
    body = text[opened.start():]
    call = re.compile(r"\s*(?:<tool_call>\s*)?<function=([^>\n<]+)>(.*?)</function>\s*(?:</tool_call>)?", re.DOTALL)
    parameter = re.compile(r"\s*<parameter=([^>\n<]+)>(.*?)</parameter>", re.DOTALL)
    calls = []
    while body.strip():
        # Text between calls is dropped.
        found = re.search(r"<tool_call>|<function=", body)
        if not found:
            break
        body = body[found.start():]
        match = call.match(body)
        if not match:
            return result(text, text, None)
        arguments, inner = {}, match.group(2)
        while inner.strip():
            part = parameter.match(inner)
            if not part:
                return result(text, text, None)
            value = part.group(2)
            value = value[1:] if value.startswith("\n") else value
            value = value[:-1] if value.endswith("\n") else value
            arguments[part.group(1)] = convert(part.group(1), value)
            inner = inner[part.end():]
        calls.append({"name": match.group(1), "arguments": arguments})
        body = body[match.end():]
    return result(text, text[: opened.start()], calls)


def hermes_texts():
    def wrap(body, end="\n</tool_call>"):
        return "<tool_call>\n" + body + end

    def call(arguments, name="get_weather"):
        return '{"name": "%s", "arguments": %s}' % (name, arguments)

    for arguments in ARGUMENTS:
        yield wrap(call(arguments))
        yield wrap('{"arguments": %s, "name": "last"}' % arguments)
    for before, arguments in itertools.product(BEFORE, ARGUMENTS[:3]):
        yield before + wrap(call(arguments)) + "\n" + wrap(call(ARGUMENTS[6], "second")) + "\ntail is dropped"
    for broken in BROKEN:
        yield wrap(broken)
        yield "Let me see. " + wrap(call("{}")) + wrap(broken)
    whole = wrap(call(ARGUMENTS[4]))
    for length in range(8, len(whole), 9):  # cut off by max_tokens
        yield whole[:length]
    yield "no call at all"
    yield "just <tool_cal and > then text </tool_call>"
    yield "日本 <tool_call"
    yield wrap(call("{}"), "")
    yield "<tool_call>" + call("{}") + "</tool_call>"
    yield "".join(wrap(call('{"i": %d}' % i, "f%d" % i)) for i in range(6))
    yield wrap(call("{}")) + " and <tool_cal no more"
    yield wrap('{"id": 7, "name": "f", "extra": [{"name": "x"}], "arguments": {"name": "inner", "arguments": 1}}')


def llama_texts():
    def call(arguments, name="f", key="parameters"):
        return '{"name": "%s", "%s": %s}' % (name, key, arguments)

    for arguments in ARGUMENTS:
        yield call(arguments)
    for tag, arguments in itertools.product(["<|python_tag|>", " <|python_tag|> \n"], ARGUMENTS[3:6]):
        yield tag + call(arguments, key="arguments")
    for broken in BROKEN:
        yield broken.replace("arguments", "parameters")
    yield call("{}") + "; " + call(ARGUMENTS[6], "g")
    yield call("{}") + ";" + call("{}", "g") + " ; " + call("[]", "h") + ";"
    yield call("{}") + " and more text"
    yield '{"answer": 42}'
    yield "plain text with {braces}"
    yield "<|python_tag|>print(1)"
    yield "<|python"
    yield "  "
    whole = call(ARGUMENTS[5])
    for length in range(4, len(whole), 11):
        yield whole[:length]


def coder_texts():
    def parameter(key, value):
        return "<parameter=%s>\n%s\n</parameter>\n" % (key, value)

    def call(*parameters, name="f"):
        return "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>" % (name, "".join(parameters))

    values = ["Paris", "", "7", "-3.5", "true", "FALSE", "null", "nullable", "none", '{"a": [1, {"b": "}"}]}', "[1, 2]",
              "two\nlines\n", "日本語 🌍", 'say "hi" \\ there', "<b>x</b> </parameter", "[broken", "012"]
    for key, value in itertools.product(["s", "i", "o"], values):
        yield call(parameter(key, value))
    for value in values[2:10]:
        yield "First.\n" + call(parameter("x", value), parameter("b", value), parameter("u", value), parameter("any", value))
    yield call()
    yield call() + "\n" + call(parameter("s", "x"), name="g") + " end"
    yield "<function=f>\n<parameter=s>inline</parameter>\n</function>"
    yield "<function=f>\n</function>\n<function=g>\n</function>"
    yield call(parameter("unknown", "5"))
    yield "<tool_call>\nno function"
    yield "<tool_call>\n<function=f>\nstray text</function>\n</tool_call>"
    yield "text <function and <tool_call"
    whole = "Yes. " + call(parameter("s", "a long value"), parameter("i", "5"))
    for length in range(6, len(whole) - 25, 7):
        yield whole[:length]


def main():
    lines = []
    for name, texts, parse in (("hermes", hermes_texts(), parse_hermes), ("llama3_json", llama_texts(), parse_llama),
                               ("qwen3_coder", coder_texts(), parse_coder)):
        for text in texts:
            lines.append(json.dumps({"format": name, "text": text, **parse(text)}, ensure_ascii=False))
    path = pathlib.Path(__file__).with_name("tool_outputs.jsonl")
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    print(f"{path.name}: {len(lines)} outputs")


if __name__ == "__main__":
    main()

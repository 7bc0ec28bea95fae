# SPDX-License-Identifier: Apache-2.0
"""Request bodies that together use every field and form of completions and chats, good ones and bad ones: what
test_same_answer.py asks every deployment. A case is (path, body, headers); a body that is a str is sent as it is."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

WEATHER = [{"type": "function", "function": {
    "name": name, "description": "Tells the weather.", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"], "additionalProperties": False}}} for name in ("get_weather", "get_climate")]
CLIMATE = {"type": "function", "function": {"name": "get_climate"}}
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["é", "b"]}, "age": {"type": "integer", "minimum": 0,
          "maximum": 9}}, "required": ["name", "age"], "additionalProperties": False}
# What a grammar makes the model write, to be read by the parsers of tools and thoughts.
CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome)", "days": [1-3]\}\}\n</tool_call>'
EMOJI = "(\U0001f600|\U0001f44d\U0001f3fd|é|नम|中文){3}"
LONG = "The old lighthouse keeper counted the ships that passed each night and wrote their names in a book. "
TOO_LONG = [{"role": "user", "content": LONG * 50}]
USER = [{"role": "user", "content": "Tell me about Paris."}]
IDS = [504 + 7 * i for i in range(20)]


def completion(prompt="The sky is", headers=None, **fields):
    return COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 3, **fields}, headers or {}


def chat(messages=None, headers=None, **fields):
    return CHAT, {"messages": messages or USER, "temperature": 0, "max_tokens": 3, **fields}, headers or {}


# Asked in turn whole and as a stream; those with more than one choice, stop strings, parsers or token ids both ways.
COMPLETION_FIELDS = [
    {}, {"max_tokens": 1}, {"model": "m"}, {"model": "alias"}, {"model": None}, {"temperature": "0.0"},
    {"temperature": 0.7, "seed": 5}, {"temperature": 1.3, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "seed": -7},
    {"temperature": 1, "n": 3, "seed": 3}, {"prompt": ["One two", "A B C"], "temperature": 1, "n": 2, "seed": 4},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 5},
    {"prompt": IDS}, {"prompt": [IDS, IDS[:7]]}, {"prompt": ["a"]}, {"prompt": LONG * 4}, {"prompt": IDS[:16]},
    {"add_special_tokens": False}, {"echo": True}, {"echo": True, "max_tokens": 0}, {"prompt": IDS[:5], "echo": True},
    {"echo": True, "logprobs": 1}, {"prompt": [IDS[:4], IDS[:6]], "echo": True, "logprobs": 0, "max_tokens": 0},
    {"prompt": IDS[:1]}, {"prompt": IDS[:1], "echo": True, "logprobs": 0, "max_tokens": 1},
    {"prompt": IDS[:1], "echo": True, "logprobs": 1, "max_tokens": 0},
    {"logprobs": 2}, {"logprobs": 0, "max_tokens": 1}, {"logprobs": 3, "return_tokens_as_token_ids": True},
    {"return_token_ids": True}, {"return_token_ids": True, "echo": True},
    {"stop": " blue"}, {"stop": ["e", "l"], "include_stop_str_in_output": True, "max_tokens": 9},
    {"stop": ["\n\n", "nowhere"], "max_tokens": 6}, {"stop_token_ids": ["4461"], "max_tokens": 9}, {"audio": {"voice": "x"}},
    {"guided_json": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}},
    {"ignore_eos": True, "max_tokens": 5}, {"min_tokens": 3, "stop": ["e"]},
    {"logit_bias": {"2": 100}}, {"logit_bias": {"0": 100}}, {"logit_bias": {"2": 100}, "min_tokens": 2},
    {"logit_bias": {"2": 100}, "ignore_eos": True}, {"logit_bias": {"2": 100}, "max_tokens": 1},
    {"allowed_token_ids": [504, 511, 518], "max_tokens": 4}, {"skip_special_tokens": False, "logit_bias": {"2": 100}},
    {"spaces_between_special_tokens": False}, {"truncate_prompt_tokens": 2}, {"prompt": IDS, "truncate_prompt_tokens": -1},
    {"prompt": LONG * 50, "truncate_prompt_tokens": -1}, {"prompt": [IDS * 30, IDS], "truncate_prompt_tokens": -1, "n": 1},
    {"prompt": LONG * 50, "truncate_prompt_tokens": 300}, {"prompt": IDS * 30, "truncate_prompt_tokens": -1, "max_tokens": None},
    {"cache_salt": "s"}, {"priority": -3}, {"request_id": "mine", "user": "u", "nobody_knows": [1]},
    {"vllm_xargs": {"a": 1}}, {"kv_transfer_params": {}}, {"kv_transfer_params": None}, {"best_of": 1},
    {"guided_choice": ["nice", "bad"]}, {"guided_regex": "[0-9]{2}:[0-9]{2}", "max_tokens": 9},
    {"guided_regex": EMOJI, "max_tokens": 20}, {"guided_regex": EMOJI, "max_tokens": 4},
    {"guided_grammar": 'root ::= "hot" | "cold"'}, {"guided_json": SCHEMA, "max_tokens": 20},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "max_tokens": 20},
    {"structured_outputs": {"choice": ["é", "b"]}, "temperature": 1, "n": 2, "seed": 1},
    {"response_format": {"type": "json_object"}, "max_tokens": 6},
]
CHAT_FIELDS = [
    {}, {"max_tokens": None, "max_completion_tokens": 2}, {"max_tokens": 1}, {"temperature": 1, "n": 2, "seed": 3},
    {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 1, "max_tokens": 1},
    {"logprobs": True, "return_tokens_as_token_ids": True}, {"return_token_ids": True},
    {"stop": ["e"], "max_tokens": 6}, {"bad_words": ["Paris", "The"]}, {"min_tokens": 2, "logit_bias": {"2": 100}},
    {"logit_bias": {"2": 100}}, {"logit_bias": {"2": 100}, "skip_special_tokens": False},
    {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": [
        {"type": "text", "text": "Hi"}, {"type": "input_text", "text": "you"}], "name": "x"}]},
    {"messages": [{"role": "developer", "content": None}, {"role": "critic", "content": "Hm."}]},
    {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}}]},
     {"role": "tool", "tool_call_id": "1", "content": "Sunny."}]},
    {"messages": [*USER, {"role": "assistant", "content": "Paris is"}], "continue_final_message": True,
     "add_generation_prompt": False, "echo": True},
    {"messages": [*USER, {"role": "assistant", "content": "Paris is"}], "continue_final_message": True},
    {"add_generation_prompt": False}, {"echo": True}, {"add_special_tokens": True}, {"documents": [{"text": "d"}]},
    {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}{{ word }}",
     "chat_template_kwargs": {"word": " yes", "other": 1}}, {"reasoning_effort": "low"}, {"suffix": "x"},
    {"truncate_prompt_tokens": 5},
    {"messages": TOO_LONG, "truncate_prompt_tokens": -1},
    {"messages": TOO_LONG, "truncate_prompt_tokens": -1, "max_tokens": None, "max_completion_tokens": 5, "echo": False},
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}, "max_tokens": 6},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
     "max_tokens": 20},
    {"response_format": {"type": "structural_tag", "triggers": ["<f="], "structures": [
        {"begin": "<f=a>", "schema": {"enum": [1, 2]}, "end": "</f>"}]}, "max_tokens": 6},
    {"response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "ok "}, {"type": "tag", "begin": "<f>", "content": {
            "type": "json_schema", "json_schema": {"enum": [1, 2]}}, "end": "</f>"}]}}, "max_tokens": 20},
    {"guided_regex": EMOJI, "max_tokens": 20, "logprobs": True},
    {"tools": WEATHER}, {"tools": WEATHER, "tool_choice": "none"}, {"tools": WEATHER, "tool_choice": None},
    {"tools": WEATHER, "guided_regex": f"I see. {CALL}", "max_tokens": 50},
    {"tools": WEATHER, "guided_regex": f"{CALL}\n{CALL}", "max_tokens": 90, "temperature": 1, "seed": 2, "n": 2},
    {"tools": WEATHER, "guided_regex": f"{CALL}\n{CALL}", "max_tokens": 90, "parallel_tool_calls": False},
    {"tools": WEATHER, "guided_regex": CALL, "max_tokens": 20},
    {"tools": WEATHER, "guided_regex": r'<tool_call>\n\{"name": oh\n</tool_call>', "max_tokens": 30},
    {"tools": WEATHER, "guided_regex": r'<tool_call>\{"name": "noargs"\}</tool_call>', "max_tokens": 30},
    {"tools": WEATHER, "guided_regex": f"{CALL}{CALL}", "max_tokens": 50},
    {"tools": WEATHER, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 50},
    {"tools": WEATHER, "tool_choice": CLIMATE, "max_tokens": 40}, {"tools": WEATHER, "tool_choice": CLIMATE},
    {"tools": WEATHER, "tool_choice": "required", "max_tokens": 20},
    {"tools": WEATHER, "tool_choice": "required", "max_tokens": 12, "logprobs": True, "return_token_ids": True},
    {"cache_salt": "s", "priority": 4, "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
]
# Only whole or only streamed.
SINGLE = [
    completion(prompt_logprobs=0), completion(prompt_logprobs=1, logprobs=1), completion(IDS, prompt_logprobs=2, max_tokens=1),
    completion(IDS[:1], prompt_logprobs=2, echo=True, logprobs=0), completion([IDS[:1], IDS[1:3]], prompt_logprobs=1),
    chat(prompt_logprobs=1), completion(stream=True, prompt_logprobs=0),
    *[path(stream=True, stream_options=options) for path in (completion, chat) for options in (
        None, {}, {"include_usage": True}, {"include_usage": False},
        {"include_usage": True, "continuous_usage_stats": True}, {"continuous_usage_stats": True})],
    completion(["One two", "A B C"], stream=True, temperature=1, n=2, seed=9,
               stream_options={"include_usage": True, "continuous_usage_stats": True}),
    completion(headers={"X-Request-Id": "given-by-the-client"}), completion(headers={"X-data-parallel-rank": "0"}),
    completion(request_id="h\u00e9 1_2"), chat(request_id="x" * 300, stream=True), completion(["a", "b c"], request_id="5_a-7"),
]
SCHEMALESS = {"type": "json_schema"}
REFUSED = [
    completion(None), completion(""), completion([]), completion([""]), completion([[]]), completion(5),
    completion([1, "a"]), completion([999999]), completion([-1]), completion(prompt_embeds="x"), completion(model="nobody"),
    completion(model=5), completion(temperature=-1), completion(temperature="hot"), completion(top_p=0), completion(top_p=2),
    completion(top_k=-2), completion(min_p=2), completion(repetition_penalty=0), completion(presence_penalty=3),
    completion(frequency_penalty=-3), completion(n=0), completion(n=2), completion(n=5000, temperature=1),
    completion(best_of=2), completion(best_of=1, n=2, temperature=1), completion(use_beam_search=True),
    completion(seed=1e30), completion(stop=""), completion(stop=5), completion(stop=["a", 1]), completion(stop_token_ids="x"),
    completion(min_tokens=4), completion(min_tokens=-1), completion(max_tokens=0), completion(max_tokens=-1),
    completion(max_tokens=2.5), completion(max_tokens=5000), completion(max_tokens=510), completion(LONG * 50),
    completion(logit_bias={"x": 1}), completion(logit_bias={"999999": 1}), completion(allowed_token_ids=[]),
    completion(allowed_token_ids=[999999]), completion(logprobs=-1), completion(logprobs=21), completion(prompt_logprobs=-2),
    completion(prompt_logprobs=21), completion(prompt_logprobs=1, stream=True), completion(truncate_prompt_tokens=0),
    completion(truncate_prompt_tokens=5000), completion(logits_processors=["x"]), completion(suffix="x"),
    completion(cache_salt=""), completion(stream_options={"include_usage": True}), completion(stream="maybe"),
    completion(stream=True, stream_options=5), completion(guided_regex="["), completion(guided_choice=[]),
    completion(guided_regex="a", guided_choice=["b"]), completion(response_format=SCHEMALESS),
    completion(guided_grammar="start: nothing"), completion(vllm_xargs=5),
    completion(headers={"X-data-parallel-rank": "7"}), completion(headers={"X-Request-Id": "x" * 600}),
    completion(request_id="x" * 600), chat(request_id=7), completion(kv_transfer_params=5), completion(kv_transfer_params=[]),
    completion(kv_transfer_params="x", stream=True), completion(kv_transfer_params={"do_remote_prefill": "x"}),
    chat(kv_transfer_params=True), chat(kv_transfer_params={"do_remote_decode": [], "do_remote_prefill": 5}),
    completion(headers={"Content-Type": "text/plain"}), completion(repetition_detection={"x": 1}),
    (COMPLETIONS, "", {}), (COMPLETIONS, "{", {}), (COMPLETIONS, "[1]", {}), (COMPLETIONS, '{"prompt": "a", }', {}),
    (CHAT, "{}", {}), (CHAT, "null", {}),
    chat("hi"), chat([5]), chat([{"content": "no role"}]), chat([{"role": "user", "content": 5}]),
    chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    chat([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
    chat(max_tokens=0), chat(max_completion_tokens=5000), chat(top_logprobs=2), chat(logprobs=True, top_logprobs=-2),
    chat(logprobs=True, top_logprobs=21), chat(logprobs=True, top_logprobs=-1), chat(tool_choice="auto"),
    chat(tools=WEATHER, tool_choice="sometimes"), chat(tools=WEATHER, tool_choice=5), chat(tools=5), chat(tools=[5]),
    chat(tools=WEATHER, tool_choice={"type": "function", "function": {"name": "h"}}), chat(tools=[], tool_choice="required"),
    chat(continue_final_message=True, add_generation_prompt=True), chat(chat_template="{{ raise_exception('no') }}"),
    chat(chat_template="{% if"), chat(documents=5), chat(chat_template_kwargs=5), chat(bad_words=[" "]),
    chat(bad_words="x"), chat(response_format={"type": "yaml"}), chat(response_format={"type": "structural_tag"}),
    chat(response_format={"type": "structural_tag", "format": {"type": "what"}}), chat(TOO_LONG),
    chat(structured_outputs={"json": {"type": "thing"}}), chat(structured_outputs=5), chat(reasoning_effort="bad"),
    chat(tools=[{**WEATHER[0], "type": "x"}]), completion(logit_bias={"5": None}), (CHAT, '{"é": ', {}),
]


BOTH_WAYS = ("n", "stop", "tools", "return_token_ids", "logprobs", "echo", "guided_regex", "include_stop_str_in_output")


def good():
    for make, list_of_fields in ((completion, COMPLETION_FIELDS), (chat, CHAT_FIELDS)):
        for i, fields in enumerate(list_of_fields):
            both = any(name in fields for name in BOTH_WAYS)
            if both or i % 2 == 0:
                yield make(**fields)
            if both or i % 2 == 1:
                yield make(**fields, stream=True, stream_options={"include_usage": True})
    yield from SINGLE

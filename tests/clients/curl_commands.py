# SPDX-License-Identifier: Apache-2.0
"""`curl` on every way: the commands of README.md and docs/api.md as they stand there but for the address, and what curl
does that libraries do not. Run by tests/e2e/test_clients.py."""
import json
import pathlib
import re
import subprocess
import unittest

from ways import KEY, MODEL, REQUESTS, WAYS, Ways

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JSON = ("-H", "Content-Type: application/json")


def curl(way, path, *arguments, at="url", timeout_s=60):
    """What curl prints, its status first, without the headers that differ by nature."""
    done = subprocess.run(["curl", "-sS", "-m", str(timeout_s), "-w", "\n%{http_code} %{content_type}", *arguments,
                           WAYS[way][at] + path], capture_output=True, text=True, timeout=timeout_s + 10, check=False)
    assert done.returncode == 0, f"{way}: curl {path}: {done.returncode} {done.stderr}"
    body, _, last = done.stdout.rpartition("\n")
    status, _, kind = last.partition(" ")
    return [int(status), kind, body]


def parsed(answer):
    """The JSON of an answer, without its ids and times."""
    def plain(value):
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in ("id", "created")}
        return [plain(item) for item in value] if isinstance(value, list) else value
    return plain(json.loads(answer))


def events(body):
    """The events of a stream; every line of one is an event or empty."""
    lines = body.split("\n")
    assert all(not line or line.startswith("data: ") for line in lines), body
    datas = [line.removeprefix("data: ") for line in lines if line]
    assert datas[-1] == "[DONE]", body
    return [parsed(data) for data in datas[:-1]]


def beginning(command, num_characters=60):
    """The first text of a stream, whose curl is then ended: nothing in the docs says how long it gets."""
    text = ""
    with subprocess.Popen(["bash", "-c", "exec " + command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for line in process.stdout:
            if line == b"data: [DONE]\n" or len(text) > num_characters:
                break
            if line.strip():
                for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                    text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        process.kill()
    return text[:num_characters]


def documented(name):
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", text, re.M | re.S)
    return [found for block in blocks for found in re.findall(r"^curl (?:[^\n]*\\\n)*(?:[^']|'[^']*')*?\n", block, re.M)]


class Curl(Ways):
    def test_commands_of_the_docs(self):
        commands = [command for name in ("README.md", "docs/api.md") for command in documented(name)]
        self.assertGreaterEqual(len(commands), 3)
        for command in commands:
            self.assertIn("http://127.0.0.1:8000/", command)

            def ask(way, command=command):
                here = command.replace("http://127.0.0.1:8000", WAYS[way]["url"])
                if '"stream"' in command:
                    return beginning(here)
                return parsed(subprocess.run(["bash", "-c", here], capture_output=True, timeout=90, check=True).stdout)

            answer = self.everywhere(ask)
            self.assertTrue(answer)
            self.assertNotIn("error", answer)

    def test_streams_and_content_types(self):
        body = json.dumps({"model": MODEL, **REQUESTS["chat"]})

        def whole(way):
            status, kind, text = curl(way, "/v1/chat/completions", *JSON, "-d", body)
            return [status, kind, parsed(text)]

        def streamed(way):
            request = json.dumps({**json.loads(body), "stream": True, "stream_options": {"include_usage": True}})
            status, kind, text = curl(way, "/v1/chat/completions", "-N", *JSON, "-d", request)
            return [status, kind, events(text)]

        status, kind, answer = self.everywhere(whole)
        self.assertEqual((status, kind), (200, "application/json"))
        text = answer["choices"][0]["message"]["content"]
        self.everywhere(lambda way: [text, answer["choices"][0]["finish_reason"], answer["usage"]["prompt_tokens"],
                                     answer["usage"]["completion_tokens"]], "chat")
        status, kind, pieces = self.everywhere(streamed)
        self.assertEqual((status, kind), (200, "text/event-stream; charset=utf-8"))
        self.assertEqual("".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces[:-1]), text)
        self.assertEqual(pieces[-1]["choices"], [])
        self.assertEqual(pieces[-1]["usage"]["total_tokens"], answer["usage"]["total_tokens"])

    def test_headers_shown(self):
        """-i: one Content-Type, a length for a whole answer, none for a stream."""
        def ask(way):
            found = []
            for stream in (False, True):
                body = json.dumps({"model": MODEL, **REQUESTS["completion"], "stream": stream})
                _, _, text = curl(way, "/v1/completions", "-i", *JSON, "-d", body)
                head, _, _ = text.replace("\r", "").partition("\n\n")
                lines = head.lower().split("\n")
                found.append([lines[0], [line for line in lines if line.startswith(("content-type", "transfer-encoding"))],
                              any(line.startswith("content-length") for line in lines)])
            return found

        self.assertEqual(self.everywhere(ask), [
            ["http/1.1 200 ok", ["content-type: application/json"], True],
            ["http/1.1 200 ok", ["content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked"], False]])

    def test_what_is_refused(self):
        """As an error of the kind that the endpoint has, whatever curl was told to send."""
        for path, status, arguments in (("/v1/chat/completions", 400, ("-d", "{}")),  # sent as a form
                                        ("/v1/chat/completions", 400, (*JSON, "-d", "{}")),
                                        ("/v1/chat/completions", 400, (*JSON, "-d", '{"messages": [')),
                                        ("/v1/completions", 404, (*JSON, "-d", '{"model": "nobody", "prompt": "a"}')),
                                        ("/v1/completions", 405, ()), ("/nope", 404, ())):
            def ask(way, path=path, arguments=arguments):
                found, kind, text = curl(way, path, *arguments)
                return [found, kind, parsed(text)]

            found, kind, answer = self.everywhere(ask)
            self.assertEqual((found, kind), (status, "application/json"), (path, arguments))
            if path == "/nope" or not arguments:
                self.assertIn("detail", answer)
            else:
                self.assertEqual(answer["error"]["code"], status)

    def test_forms_of_http(self):
        """HTTP/1.0, a chunked body, a body so large that curl asks first, two requests on one connection."""
        body = json.dumps({"model": MODEL, **REQUESTS["completion"]})
        expected = self.everywhere(lambda way: parsed(curl(way, "/v1/completions", *JSON, "-d", body)[2]))
        for arguments in (("--http1.0",), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue"),
                          ("--compressed",)):
            found = self.everywhere(lambda way, a=arguments: parsed(curl(way, "/v1/completions", *JSON, *a, "-d", body)[2]))
            self.assertEqual(found, expected, arguments)
        streamed = json.dumps({**json.loads(body), "stream": True})
        pieces = self.everywhere(lambda way: events(curl(way, "/v1/completions", "--http1.0", *JSON, "-d", streamed)[2]))
        self.assertEqual("".join(piece["choices"][0]["text"] for piece in pieces), expected["choices"][0]["text"])

        def large(way):
            done = subprocess.run(["curl", "-sS", *JSON, "-d", "@-", "-w", "\n%{http_code}", WAYS[way]["url"] + "/v1/completions"],
                                  input=json.dumps({"model": MODEL, "prompt": "many words " * 200_000}),
                                  capture_output=True, text=True, timeout=60, check=True)
            text, _, status = done.stdout.rpartition("\n")
            return [status, json.loads(text)["error"]["message"]]

        status, message = self.everywhere(large)
        self.assertEqual(status, "400")
        self.assertIn("maximum context length", message)

        def twice(way):
            url = WAYS[way]["url"] + "/v1/models"
            done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n",
                                   url, url], capture_output=True, text=True, timeout=60, check=True)
            return done.stdout.split("\n")[:2]

        self.assertEqual(self.everywhere(twice), ["200 1", "200 0"])

    def test_keys(self):
        def ask(way):
            return [curl(way, path, *arguments, at="thinking")[0::2] if path != "/v1/models" or not arguments
                    else curl(way, path, *arguments, at="thinking")[0] for path, arguments in (
                        ("/v1/models", ()), ("/health", ()), ("/v1/models", ("-H", f"Authorization: Bearer {KEY}")))]

        refused, healthy, allowed = self.everywhere(ask)
        self.assertEqual((refused[0], json.loads(refused[1])), (401, {"error": "Unauthorized"}))
        self.assertEqual((healthy[0], allowed), (200, 200))

    def test_gives_up(self):
        """-m: nothing that was left behind goes on."""
        body = json.dumps({"model": MODEL, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True})
        for way in WAYS:
            done = subprocess.run(["curl", "-sSN", "-m", "1", *JSON, "-d", body, WAYS[way]["url"] + "/v1/completions"],
                                  capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual(done.returncode, 28, done.stderr)  # the time is over
            self.assert_idle(way)


if __name__ == "__main__":
    unittest.main()

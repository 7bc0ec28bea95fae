# SPDX-License-Identifier: Apache-2.0
"""What users of other proxies reported, tried on ours: real instances with the scripted worker behind a pull proxy and a
layerwise one. Its text depends on every slot of KV, so equal text means that the KV arrived."""
import json
import unittest

import tandem_processes as tandem

STUB = ("--load-format", "stub", "--max-model-len", "2048", "--served-model-name", "stub")
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Why is the sea salty and the river not?"}]
PROMPT = "Once upon a time there was a sea that had forgotten why it was salty"


def text_of(body):
    return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]


class Requests(unittest.TestCase):
    """What a client sends and gets: the same as from an instance alone."""

    @classmethod
    def setUpClass(cls):
        cls.alone = tandem.serve("alone", *STUB)
        cls.addClassCleanup(cls.alone.stop)
        cls.ways = [tandem.Pair(*STUB, flow=flow, start=False).start() for flow in tandem.CONNECTORS]
        for way in cls.ways:
            cls.addClassCleanup(way.stop)
        cls.alone.wait_ready()
        for way in cls.ways:
            way.wait_ready()

    def each_way(self):
        for way in self.ways:
            yield way
            tandem.assert_scores_zero(way.proxy)

    def assert_same(self, path, body):
        """Text and usage of a greedy request are those of an instance alone; returns the proxies' answers."""
        body = {"temperature": 0, **body}
        _, expected = self.alone.post(path, body)
        answers = []
        for way in self.each_way():
            status, got = way.proxy.post(path, body)
            self.assertEqual(status, 200, got)
            self.assertEqual(text_of(got), text_of(expected))
            self.assertEqual([choice["index"] for choice in got["choices"]], list(range(len(expected["choices"]))))
            self.assertEqual([choice["finish_reason"] for choice in got["choices"]],
                             [choice["finish_reason"] for choice in expected["choices"]])
            self.assertEqual(got["usage"], expected["usage"])
            answers.append(got)
        return answers

    def test_min_tokens(self):
        for got in self.assert_same(COMPLETIONS, {"prompt": PROMPT, "min_tokens": 100, "max_tokens": 500}):
            self.assertGreaterEqual(got["usage"]["completion_tokens"], 100)

    def test_max_completion_tokens_alone_does_not_make_the_prefiller_decode(self):
        body = {"messages": MESSAGES, "max_completion_tokens": 200, "ignore_eos": True}
        before = [way.prefill.metric("vllm:generation_tokens_total") for way in self.ways]
        for got in self.assert_same(CHAT, body):
            self.assertEqual(got["usage"]["completion_tokens"], 200)
        for way, tokens in zip(self.ways, before):
            self.assertLessEqual(way.prefill.metric("vllm:generation_tokens_total"), tokens + 1, way.flow)

    def test_no_length_and_null(self):
        for length in ({}, {"max_tokens": None}, {"max_completion_tokens": None, "max_tokens": None}):
            self.assert_same(CHAT, {"messages": MESSAGES, **length})
            self.assert_same(COMPLETIONS, {"prompt": PROMPT, **length})

    def test_every_form_of_prompt(self):
        words = ["The first of two prompts that go together", "and the second one, which is longer than the first"]
        tokens = [[11, 12, 13, 14, 15], [21, 22, 23], [31, 32, 33, 34]]
        for prompt in (words[0], words, tokens[0], tokens):
            self.assert_same(COMPLETIONS, {"prompt": prompt, "max_tokens": 6})
        one_by_one = [text_of(self.alone.complete(prompt, max_tokens=6))[0] for prompt in tokens]
        for way in self.each_way():
            self.assertEqual(text_of(way.proxy.complete(tokens, max_tokens=6)), one_by_one)

    def test_usage_of_a_stream(self):
        body = {"messages": MESSAGES, "max_tokens": 9, "temperature": 0, "stream_options": {"include_usage": True}}
        expected = list(self.alone.stream(CHAT, body))[-1]["usage"]
        for way in self.each_way():
            self.assertEqual(list(way.proxy.stream(CHAT, body))[-1]["usage"], expected)

    def test_media_types(self):
        for way in self.each_way():
            for path, body in ((COMPLETIONS, {"prompt": PROMPT}), (CHAT, {"messages": MESSAGES})):
                for stream, expected in ((True, "text/event-stream; charset=utf-8"), (False, "application/json")):
                    status, headers, _ = way.proxy.exchange("POST", path, {**body, "max_tokens": 2, "stream": stream}, tandem.JSON)
                    self.assertEqual((status, headers["Content-Type"]), (200, expected))

    def test_refusals_are_those_of_an_instance(self):
        bad = ({"prompt": "x", "model": "nope"}, {"prompt": "x", "temperature": -1}, "{", "[]", {"max_tokens": 3},
               {"prompt": "x", "max_tokens": 9999}, {"prompt": "x", "min_tokens": 9, "max_tokens": 3},
               {"prompt": "word " * 3000})
        good = {"prompt": "x"}
        for body, headers in (*((body, tandem.JSON) for body in bad), (good, {"Content-Type": "text/plain"}), (good, {})):
            status, _, raw = self.alone.exchange("POST", COMPLETIONS, body, headers)
            self.assertIn(status, (400, 404), raw)
            self.assertEqual(sorted(json.loads(raw)["error"]), ["code", "message", "param", "type"])
            for way in self.each_way():
                self.assertEqual(way.proxy.exchange("POST", COMPLETIONS, body, headers)[::2], (status, raw), body)

    def test_every_route_answers(self):
        """What an instance has, works through a proxy or is refused at once; never a wait, never an empty body."""
        gets = ("/v1/models", "/version", "/metrics", "/health", "/ping", "/load", "/openapi.json", "/docs", "/tandem/info",
                "/server_info", "/is_sleeping", "/nowhere")
        posts = ("/v1/embeddings", "/v1/responses", "/v1/score", "/v1/rerank", "/pooling", "/classify", "/sleep", "/wake_up",
                 "/v1/load_lora_adapter", "/v1/audio/transcriptions", "/invocations", "/nowhere", "/abort_requests")
        for way in self.each_way():
            for method, paths in (("GET", gets), ("POST", posts)):
                for path in paths:
                    body = "{}" if method == "POST" else None
                    status, _, raw = way.proxy.exchange(method, path, body, tandem.JSON, timeout_s=5)
                    self.assertIn(status, (200, 400, 404, 405, 501), (path, raw))
                    if status != 200:
                        self.assertTrue(json.loads(raw), path)
            self.assertEqual(json.loads(way.proxy.get("/v1/models")[1])["data"][0]["id"], "stub")
            self.assertIn("version", json.loads(way.proxy.get("/version")[1]))
            self.assertEqual(way.proxy.get("/health"), (200, b""))
            status, tokens = way.proxy.post("/tokenize", {"prompt": PROMPT})
            self.assertEqual((status, tokens), self.alone.post("/tokenize", {"prompt": PROMPT}))


class Keys(unittest.TestCase):
    def test_a_clients_key_is_passed_on_and_ours_is_used_without_one(self):
        flags = ("--api-key", "right")
        for flow in tandem.CONNECTORS:
            way = tandem.Pair(*STUB, *flags, flow=flow)
            self.addCleanup(way.stop)
            body = {"prompt": PROMPT, "max_tokens": 3}
            right, wrong = {"Authorization": "Bearer right"}, {"Authorization": "Bearer wrong"}
            self.assertEqual(way.proxy.post(COMPLETIONS, body, right)[0], 200)
            for headers in (wrong, {}):
                status, refusal = way.proxy.post(COMPLETIONS, body, headers)
                self.assertEqual((status, refusal), way.decode.post(COMPLETIONS, body, headers))
                self.assertEqual(status, 401)
            self.assertEqual(way.proxy.get("/health")[0], 200, "open")
            self.assertEqual(way.proxy.get("/v1/models")[0], 401)
            # With a key of its own the proxy speaks for clients that have none, and for no others.
            way.proxy.stop()
            way.start_proxy(environment={"OPENAI_API_KEY": "right"}).wait_ready()
            self.assertEqual(way.proxy.post(COMPLETIONS, body)[0], 200)
            self.assertEqual(way.proxy.get("/v1/models")[0], 200)
            self.assertEqual(way.proxy.post(COMPLETIONS, body, wrong)[0], 401)
            tandem.assert_blocks_come_back(way.prefill, way.decode)


class Readiness(unittest.TestCase):
    def test_ready_only_when_both_sides_are(self):
        ways = [tandem.Pair(*STUB, flow=flow, start=False) for flow in tandem.CONNECTORS]
        for way in ways:
            self.addCleanup(way.stop)
            way.start_proxy().wait_ready()
        self.assert_not_ready(ways, "no prefiller answers")
        for way in ways:
            way.start_prefill()
        for way in ways:
            way.prefill.wait_ready()
        self.assert_not_ready(ways, "no decoder answers")
        refusals = [way.proxy.post(COMPLETIONS, {"prompt": PROMPT}) for way in ways]
        for way, (status, body) in zip(ways, refusals):
            way.start_decode()
            self.assertEqual(status, 503, body)
            self.assertIn(f"decoder 127.0.0.1:{way.decode.port}", body["error"]["message"])
        for way in ways:
            tandem.wait_until(lambda: way.proxy.get("/health")[0] == 200, 20, "ready")
            status, body = way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})
            self.assertEqual(status, 200, f"the first request after readiness: {body}")

    def assert_not_ready(self, ways, reason):
        for way in ways:
            status, raw = way.proxy.get("/health")
            self.assertEqual(status, 503)
            self.assertIn(reason, json.loads(raw)["error"]["message"])


if __name__ == "__main__":
    unittest.main()

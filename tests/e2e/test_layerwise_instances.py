# SPDX-License-Identifier: Apache-2.0
"""Layerwise push between real instances, driven the way that vLLM-Ascend's proxy scripts drive theirs: the decoder is
asked first, posts to the metaserver, and the prefiller gets that message as kv_transfer_params. The stand-in for a proxy
here is as careless as the real ones, so that what must never hang is the instances' own doing."""
import contextlib
import http.server
import json
import threading
import time
import unittest
import uuid

import tandem_processes as tandem

PROMPT = "Tell me in one sentence why the sea is salty, and then why rivers are not. " * 6


class Metaserver:
    """/v1/metaserver of a proxy. `answer(message)` makes (status, body); by default it prefills and says ok."""

    def __init__(self, prefill):
        self.prefill = prefill
        self.bodies = {}  # request id -> (path, body of the client)
        self.messages = []
        self.prefill_answers = []
        self.answer = self.do_prefill
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.messages.append((dict(self.headers), message))
                status, body = owner.answer(message)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metaserver"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def do_prefill(self, message, change=lambda message: message):
        path, body = self.bodies[message["request_id"]]
        base = message["request_id"].replace("chatcmpl-", "").replace("cmpl-", "")
        base = base if message["request_id"].startswith("chat") else base[:-2]
        body = {**body, "kv_transfer_params": change(message), "stream": False, "max_tokens": 1, "min_tokens": 1}
        status, answer = self.prefill.post(path, body, {"X-Request-Id": base})
        self.prefill_answers.append((status, answer))
        return (200, b'{"status":"ok"}') if status == 200 else (502, json.dumps(answer).encode())

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Layerwise(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        thoughts = ("--max-model-len", "1024", "--reasoning-parser", "qwen3")
        cls.alone = tandem.serve("alone", *thoughts)
        common = (*thoughts, "--max-num-batched-tokens", "64")
        transfer = {"kv_connector": "MooncakeLayerwiseConnector"}
        cls.prefill = tandem.serve("P1", *common, role="kv_producer", transfer=transfer)
        cls.decode = tandem.serve("D1", *common, "--log-level", "debug", role="kv_consumer", transfer=transfer)
        for process in (cls.alone, cls.prefill, cls.decode):
            cls.addClassCleanup(process.stop)
        for process in (cls.alone, cls.prefill, cls.decode):
            process.wait_ready()

    def setUp(self):
        self.meta = Metaserver(self.prefill)
        self.addCleanup(self.meta.stop)

    def ask(self, prompt=PROMPT, path="/v1/completions", headers=None, **fields):
        path, body, headers = self.request(prompt, path, headers, **fields)
        return self.decode.post(path, body, headers)

    def request(self, prompt, path, headers=None, **fields):
        """What a proxy sends to the decoder; the metaserver knows of it from here on."""
        base = str(uuid.uuid4())
        body = {"temperature": 0, "max_tokens": 12, **fields}
        if path == "/v1/completions":
            body["prompt"] = prompt
            prompts = prompt if isinstance(prompt, list) else [prompt]
            ids = [f"cmpl-{base}-{index}" for index in range(len(prompts))]
        else:
            body["messages"] = [{"role": "user", "content": prompt}]
            ids = [f"chatcmpl-{base}"]
        for request_id in ids:
            self.meta.bodies[request_id] = (path, dict(body))
        params = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": self.meta.url}
        return path, {**body, "kv_transfer_params": params}, {"X-Request-Id": base, **(headers or {})}

    def expect_same(self, answer, prompt, path="/v1/completions", **fields):
        status, body = answer
        self.assertEqual(status, 200, body)
        wanted = {"temperature": 0, "max_tokens": 12, **fields}
        if path == "/v1/completions":
            wanted["prompt"] = prompt
            text = lambda whole: [choice["text"] for choice in whole["choices"]]
        else:
            wanted["messages"] = [{"role": "user", "content": prompt}]
            text = lambda whole: [choice["message"] for choice in whole["choices"]]
        self.assertEqual(text(body), text(self.alone.post(path, wanted)[1]))

    def balanced(self):
        tandem.assert_blocks_come_back(self.prefill, self.decode, within_s=10)

    def test_same_tokens_as_alone(self):
        before = self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        self.expect_same(self.ask("Alone. " + PROMPT), "Alone. " + PROMPT)
        self.assertGreater(self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"), before + 50)
        status, answer = self.meta.prefill_answers[-1]
        self.assertEqual((status, answer["kv_transfer_params"]), (200, None))
        headers, message = self.meta.messages[-1]
        self.assertEqual(message["do_remote_decode"], True)
        self.assertEqual(message["remote_engine_id"], "D1")
        chat = "/v1/chat/completions"
        self.expect_same(self.ask("Chat. " + PROMPT, chat), "Chat. " + PROMPT, chat)
        self.balanced()

    def test_thoughts(self):
        """Whole and streamed, with thinking on, off and not mentioned: as the instance alone, with KV that was pushed."""
        chat = "/v1/chat/completions"
        for i, kwargs in enumerate(({"enable_thinking": True}, {"enable_thinking": False}, {})):
            fields = {"chat_template_kwargs": kwargs, "max_tokens": 8}
            field = "content" if kwargs.get("enable_thinking") is False else "reasoning"
            prompt = f"Whole {i}. {PROMPT}"
            answer = self.ask(prompt, chat, **fields)
            self.expect_same(answer, prompt, chat, **fields)
            self.assertTrue(answer[1]["choices"][0]["message"][field])
            self.assertEqual(answer[1]["usage"]["completion_tokens"], 8)
            prompt = f"Streamed {i}. {PROMPT}"
            pushed = self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
            deltas = [choice["delta"] for event in self.decode.stream(*self.request(prompt, chat, **fields))
                      for choice in event["choices"]]
            self.assertGreater(self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"),
                               pushed + 50)
            alone = self.alone.post(chat, {"messages": [{"role": "user", "content": prompt}], "temperature": 0, **fields})
            message = alone[1]["choices"][0]["message"]
            for name in ("content", "reasoning"):
                self.assertEqual("".join(delta.get(name) or "" for delta in deltas), message[name] or "")
        self.balanced()

    def test_several_prompts_and_choices(self):
        prompts = ["Several. " + PROMPT, "Many. " + PROMPT, "x"]
        self.expect_same(self.ask(prompts), prompts)
        self.assertEqual(sorted(m["request_id"][-2:] for _, m in self.meta.messages), ["-0", "-1"],
                         "a prompt of one token needs nothing")
        prompt = "Choices. " + PROMPT
        computed = self.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
        fields = {"n": 3, "temperature": 0.8, "seed": 4}
        self.expect_same(self.ask(prompt, **fields), prompt, **fields)
        self.assertEqual(len(self.meta.messages), 3)
        computed = self.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - computed
        self.assertLessEqual(computed, 1 + 2 * 16, "each choice computed the prompt")
        self.balanced()

    def test_what_is_cached_is_not_asked_for(self):
        self.ask("Warm. " + PROMPT)
        asked = len(self.meta.messages)
        _, message = self.meta.messages[-1]
        self.expect_same(self.ask("Warm. " + PROMPT), "Warm. " + PROMPT)
        if len(self.meta.messages) > asked:  # the tail of a last block may be missing
            self.assertGreater(self.meta.messages[-1][1]["remote_cached_tokens"], message["remote_cached_tokens"])
        self.balanced()

    def test_a_metaserver_that_says_no(self):
        self.meta.answer = lambda message: (404, b'{"detail":"unknown"}')
        status, body = self.ask("No. " + PROMPT)
        self.assertEqual(status, 503, body)
        self.assertIn("answered 404", body["error"]["message"])
        self.balanced()

    def test_an_ok_after_a_failed_prefill(self):
        self.meta.answer = lambda message: (200, b"null")  # as rc2 does
        begun = time.monotonic()
        status, body = self.ask("Null. " + PROMPT)
        self.assertEqual(status, 503, body)
        self.assertIn("no prefiller offered its KV within", body["error"]["message"])
        self.assertLess(time.monotonic() - begun, 15)
        self.balanced()

    def test_a_prefiller_with_another_prompt(self):
        def other_prompt(message):
            path, body = self.meta.bodies[message["request_id"]]
            self.meta.bodies[message["request_id"]] = (path, {**body, "prompt": "Y" + body["prompt"][1:]})
            return self.meta.do_prefill(message)

        self.meta.answer = other_prompt
        status, body = self.ask("Xyz. " + PROMPT)
        self.assertEqual(status, 503, body)
        self.assertEqual(self.meta.prefill_answers[-1][0], 500)
        self.balanced()

    def test_a_client_that_leaves(self):
        hold = threading.Event()

        def slow(message):
            hold.wait(30)
            return self.meta.do_prefill(message)

        self.meta.answer = slow
        base = str(uuid.uuid4())
        body = {"temperature": 0, "max_tokens": 12, "prompt": "Leave. " + PROMPT}
        self.meta.bodies[f"cmpl-{base}-0"] = ("/v1/completions", dict(body))
        connection = self.decode.connection()
        body["kv_transfer_params"] = {"do_remote_prefill": True, "metaserver": self.meta.url}
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json", "X-Request-Id": base})
        tandem.wait_until(lambda: self.meta.messages, 10, "the decoder posts")
        connection.close()
        tandem.assert_blocks_come_back(self.decode, within_s=10)
        hold.set()  # the prefill comes too late: nobody waits
        tandem.wait_until(lambda: self.meta.prefill_answers, 20, "the prefill ends")
        self.assertGreaterEqual(self.meta.prefill_answers[-1][0], 400)
        self.balanced()

    def test_times_add_up(self):
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        connection = self.decode.connection()
        base = str(uuid.uuid4())
        body = {"temperature": 0, "max_tokens": 4, "prompt": "Times. " + PROMPT, "stream": True}
        self.meta.bodies[f"cmpl-{base}-0"] = ("/v1/completions", dict(body))
        body["kv_transfer_params"] = {"do_remote_prefill": True, "metaserver": self.meta.url}
        begun = time.monotonic()
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json", "X-Request-Id": base, "X-Tandem-Timing": "1",
                                "traceparent": trace})
            response = connection.getresponse()
            to_first_byte = time.monotonic() - begun
            header = response.getheader("X-Tandem-Timing")
            response.read()
        parts = {name: float(value) for name, value in (part.split("=") for part in header.split(";"))}
        self.assertEqual(list(parts), ["template", "queue", "lease_wait", "transfer", "verify", "prefill", "first_step"])
        self.assertLessEqual(sum(parts.values()), to_first_byte)
        self.assertGreater(sum(parts.values()), to_first_byte - 0.25)
        self.assertGreater(parts["first_step"], 0)
        self.assertEqual(parts["prefill"], 0)
        self.assertEqual(self.meta.messages[-1][0].get("traceparent"), trace)
        self.assertIn(trace, self.decode.log())
        self.assertGreater(self.decode.metric("tandem:request_transfer_seconds_count"), 0)

    def test_info(self):
        info = json.loads(self.decode.get("/tandem/info")[1])
        self.assertEqual((info["engine_id"], info["kv_connector"], info["kv_role"], info["tp_size"], info["block_size"]),
                         ("D1", "MooncakeLayerwiseConnector", "kv_consumer", 1, 16))
        self.assertIsNone(json.loads(self.alone.get("/tandem/info")[1])["kv_connector"])


class UnequalSides(unittest.TestCase):
    """Any to any: three ranks and large blocks push into one rank with small ones, and the reverse."""

    def pair(self, prefill_flags, decode_flags):
        common = ("--max-model-len", "1024", "--max-num-batched-tokens", "64", "--threads", "3")
        transfer = {"kv_connector": "MooncakeLayerwiseConnector"}
        prefill = tandem.serve("P3", *common, *prefill_flags, role="kv_producer", transfer=transfer)
        decode = tandem.serve("D3", *common, *decode_flags, role="kv_consumer", transfer=transfer)
        for process in (prefill, decode):
            self.addCleanup(process.stop)
            process.wait_ready()
        meta = Metaserver(prefill)
        self.addCleanup(meta.stop)
        return prefill, decode, meta

    def test_three_ranks_and_one(self):
        three = ("--tensor-parallel-size", "3", "--block-size", "128")
        for flags in ((three, ()), ((), three)):
            with self.subTest(flags=flags):
                prefill, decode, meta = self.pair(*flags)
                body = {"temperature": 0, "max_tokens": 12, "prompt": "Unequal. " + PROMPT}
                base = str(uuid.uuid4())
                meta.bodies[f"cmpl-{base}-0"] = ("/v1/completions", dict(body))
                params = {"do_remote_prefill": True, "metaserver": meta.url}
                status, answer = decode.post("/v1/completions", {**body, "kv_transfer_params": params},
                                             {"X-Request-Id": base})
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["choices"][0]["text"],
                                 prefill.complete("Unequal. " + PROMPT, max_tokens=12)["choices"][0]["text"])
                self.assertGreater(decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"), 50)
                self.assertEqual(meta.messages[-1][1]["remote_tp_size"], 3 if flags[1] else 1)
                tandem.assert_blocks_come_back(prefill, decode, within_s=10)


class PrefillerDies(unittest.TestCase):
    def test_kill_in_mid_push(self):
        common = ("--max-model-len", "2048", "--max-num-batched-tokens", "16")
        transfer = {"kv_connector": "MooncakeLayerwiseConnector", "kv_load_failure_policy": "recompute"}
        prefill = tandem.serve("P2", *common, role="kv_producer", transfer=transfer)
        decode = tandem.serve("D2", *common, role="kv_consumer", transfer=transfer)
        for process in (prefill, decode):
            self.addCleanup(process.stop)
            process.wait_ready()
        meta = Metaserver(prefill)
        self.addCleanup(meta.stop)

        def kill_in_mid_push():
            tandem.wait_until(lambda: prefill.metric("tandem:leased_blocks") >= 2, 20, "the push has begun")
            prefill.kill()

        def prefill_and_die(message):
            threading.Thread(target=kill_in_mid_push, daemon=True).start()
            with contextlib.suppress(Exception):
                return meta.do_prefill(message)
            return 502, b"the prefiller died"

        meta.answer = prefill_and_die
        base = str(uuid.uuid4())
        body = {"temperature": 0, "max_tokens": 4, "prompt": PROMPT * 12}
        meta.bodies[f"cmpl-{base}-0"] = ("/v1/completions", dict(body))
        params = {"do_remote_prefill": True, "metaserver": meta.url}
        status, answer = decode.post("/v1/completions", {**body, "kv_transfer_params": params}, {"X-Request-Id": base})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["text"], decode.complete(PROMPT * 12, max_tokens=4)["choices"][0]["text"])
        self.assertEqual(decode.metric("tandem:kv_load_recomputes_total"), 1)
        tandem.assert_blocks_come_back(decode, within_s=10)


if __name__ == "__main__":
    unittest.main()

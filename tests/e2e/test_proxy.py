# SPDX-License-Identifier: Apache-2.0
"""What users of other proxies reported, tried on ours: real instances with the scripted worker behind a pull proxy and a
layerwise one. Its text depends on every slot of KV, so equal text means that the KV arrived."""
import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import signal
import statistics
import time
import unittest

import tandem_processes as tandem

STUB = ("--load-format", "stub", "--max-model-len", "2048", "--served-model-name", "stub")
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Why is the sea salty and the river not?"}]
PROMPT = "Once upon a time there was a sea that had forgotten why it was salty"


def slow(seconds_per_step):
    return ("--hf-overrides", json.dumps({"seconds_per_step": seconds_per_step}))


class Way:
    """One flow: P, D and a proxy of their own. The ports are known before anything runs."""

    def __init__(self, flow, prefill_flags=(), decode_flags=()):
        self.flow = flow
        self.flags = {"kv_producer": (*STUB, *prefill_flags), "kv_consumer": (*STUB, *decode_flags)}
        self.ports = {role: (tandem.free_port(), tandem.free_port(tandem.MOST_RANKS)) for role in self.flags}
        self.prefill = self.decode = self.proxy = None

    def start_instance(self, role):
        port, kv_port = self.ports[role]
        return tandem.serve("P" if role == "kv_producer" else "D", *self.flags[role], role=role, port=port,
                            kv_port=kv_port, model=tandem.SMOLLM2, transfer={"kv_connector": CONNECTORS[self.flow]})

    def start_prefill(self):
        self.prefill = self.start_instance("kv_producer")

    def start_decode(self):
        self.decode = self.start_instance("kv_consumer")

    def start_proxy(self, *flags, environment=None):
        port = tandem.free_port()
        arguments = ["proxy", "--host", "127.0.0.1", "--port", str(port),
                     "--prefiller-hosts", "127.0.0.1", "--prefiller-ports", str(self.ports["kv_producer"][0]),
                     "--decoder-hosts", "127.0.0.1", "--decoder-ports", str(self.ports["kv_consumer"][0]), *flags]
        self.proxy = tandem.Process(f"proxy-{self.flow}", arguments, port, health="/healthcheck",
                                    environment=environment)

    def start(self):
        self.start_prefill()
        self.start_decode()
        self.start_proxy()
        return self

    def wait_ready(self):
        for process in (self.prefill, self.decode, self.proxy):
            process.wait_ready()
        return self

    def stop(self):
        for process in (self.proxy, self.decode, self.prefill):
            if process:
                process.stop()


def text_of(body):
    return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]


def answer(process, path, body, headers=None):
    """(status, headers, raw body)"""
    connection = process.connection(20)
    with contextlib.closing(connection):
        connection.request("POST", path, body if isinstance(body, (str, bytes)) else json.dumps(body),
                           {"Content-Type": "application/json"} if headers is None else headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


class Requests(unittest.TestCase):
    """What a client sends and gets: the same as from an instance alone."""

    @classmethod
    def setUpClass(cls):
        cls.alone = tandem.serve("alone", *STUB)
        cls.addClassCleanup(cls.alone.stop)
        cls.ways = [Way(flow).start() for flow in CONNECTORS]
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
                    status, headers, _ = answer(way.proxy, path, {**body, "max_tokens": 2, "stream": stream})
                    self.assertEqual((status, headers["Content-Type"]), (200, expected))

    def test_refusals_are_those_of_an_instance(self):
        plain = {"Content-Type": "text/plain"}
        cases = (({"prompt": "x", "model": "nope"}, None), ({"prompt": "x", "temperature": -1}, None), ("{", None),
                 ("[]", None), ({"prompt": "x"}, plain), ({"prompt": "x"}, {}), ({"max_tokens": 3}, None),
                 ({"prompt": "x", "max_tokens": 9999}, None), ({"prompt": "x", "min_tokens": 9, "max_tokens": 3}, None),
                 ({"prompt": "word " * 3000}, None))
        for body, headers in cases:
            status, _, raw = answer(self.alone, COMPLETIONS, body, headers)
            self.assertIn(status, (400, 404), raw)
            self.assertEqual(sorted(json.loads(raw)["error"]), ["code", "message", "param", "type"])
            for way in self.each_way():
                self.assertEqual(answer(way.proxy, COMPLETIONS, body, headers)[::2], (status, raw), (body, headers))

    def test_every_route_answers(self):
        """What an instance has, works through a proxy or is refused at once; never a wait, never an empty body."""
        gets = ("/v1/models", "/version", "/metrics", "/health", "/ping", "/load", "/openapi.json", "/docs", "/tandem/info",
                "/server_info", "/is_sleeping", "/nowhere")
        posts = ("/v1/embeddings", "/v1/responses", "/v1/score", "/v1/rerank", "/pooling", "/classify", "/sleep", "/wake_up",
                 "/v1/load_lora_adapter", "/v1/audio/transcriptions", "/invocations", "/nowhere", "/abort_requests")
        for way in self.each_way():
            for method, paths in (("GET", gets), ("POST", posts)):
                for path in paths:
                    connection = way.proxy.connection(5)
                    with contextlib.closing(connection):
                        connection.request(method, path, "{}" if method == "POST" else None,
                                           {"Content-Type": "application/json"})
                        response = connection.getresponse()
                        raw = response.read()
                    self.assertIn(response.status, (200, 404, 405, 501), (path, raw))
                    if response.status != 200:
                        self.assertTrue(json.loads(raw), path)
            self.assertEqual(json.loads(way.proxy.get("/v1/models")[1])["data"][0]["id"], "stub")
            self.assertIn("version", json.loads(way.proxy.get("/version")[1]))
            self.assertEqual(way.proxy.get("/health"), (200, b""))
            status, tokens = way.proxy.post("/tokenize", {"prompt": PROMPT})
            self.assertEqual((status, tokens), self.alone.post("/tokenize", {"prompt": PROMPT}))


class Keys(unittest.TestCase):
    def test_a_clients_key_is_passed_on_and_ours_is_used_without_one(self):
        flags = ("--api-key", "right")
        ways = [Way(flow, flags, flags) for flow in CONNECTORS]
        for way in ways:
            self.addCleanup(way.stop)
            way.start()
        for way in ways:
            way.wait_ready()
        for way in ways:
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
            way.start_proxy(environment={"OPENAI_API_KEY": "right"})
            way.proxy.wait_ready()
            self.assertEqual(way.proxy.post(COMPLETIONS, body)[0], 200)
            self.assertEqual(way.proxy.get("/v1/models")[0], 200)
            self.assertEqual(way.proxy.post(COMPLETIONS, body, wrong)[0], 401)
            tandem.assert_blocks_come_back(way.prefill, way.decode)


class Readiness(unittest.TestCase):
    def test_ready_only_when_both_sides_are(self):
        ways = [Way(flow) for flow in CONNECTORS]
        for way in ways:
            self.addCleanup(way.stop)
            way.start_proxy()
            way.proxy.wait_ready()
        self.assert_not_ready(ways, "no prefiller answers")
        for way in ways:
            way.start_prefill()
        for way in ways:
            way.prefill.wait_ready()
        self.assert_not_ready(ways, "no decoder answers")
        for way in ways:
            with self.subTest(flow=way.flow):
                status, body = way.proxy.post(COMPLETIONS, {"prompt": PROMPT})
                self.assertEqual(status, 503, body)
                self.assertIn(f"decoder 127.0.0.1:{way.ports['kv_consumer'][0]}", body["error"]["message"])
            way.start_decode()
        for way in ways:
            tandem.wait_until(lambda: way.proxy.get("/health")[0] == 200, 20, "ready")
            status, body = way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})
            self.assertEqual(status, 200, f"the first request after readiness: {body}")

    def assert_not_ready(self, ways, reason):
        for way in ways:
            status, raw = way.proxy.get("/health")
            self.assertEqual(status, 503)
            self.assertIn(reason, json.loads(raw)["error"]["message"])


class Streams(unittest.TestCase):
    """Pace, numbers, and ends of streams."""
    STEP_S = 0.02

    def ways(self, *, seconds_per_step=STEP_S, flows=tuple(CONNECTORS), decode_flags=()):
        ways = [Way(flow, decode_flags=(*slow(seconds_per_step), *decode_flags)).start() for flow in flows]
        for way in ways:
            self.addCleanup(way.stop)
        return [way.wait_ready() for way in ways]

    @staticmethod
    def arrivals(process, tokens):
        """Times of arrival of the events of a stream."""
        stream = tandem.Stream(process, {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True})
        times = []
        with contextlib.closing(stream):
            while (event := stream.event()) != "[DONE]":
                assert event, "the stream broke"
                times.append(time.monotonic())
        return times

    def test_tokens_arrive_when_they_are_made(self):
        ways = self.ways()
        runs = {way.flow: tandem.Background(lambda way=way: self.arrivals(way.proxy, 200)) for way in ways}
        runs["direct"] = tandem.Background(lambda: self.arrivals(ways[0].decode, 200))
        gaps = {}
        for name, run in runs.items():
            times = run.result(60)
            self.assertEqual(len(times), 200, name)
            gaps[name] = [after - before for before, after in zip(times, times[1:])]
        self.assertGreaterEqual(statistics.median(gaps["direct"]), self.STEP_S * 0.9)
        for flow in CONNECTORS:
            self.assertAlmostEqual(statistics.median(gaps[flow]), statistics.median(gaps["direct"]), delta=0.005)

    def test_two_thousand_streams_at_once(self):
        count, tokens = 2000, 10
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))  # what most systems give a process
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        way, = self.ways(seconds_per_step=0.5, flows=("pull",),
                         decode_flags=("--max-num-seqs", count, "--num-gpu-blocks-override", 8 * count,
                                       "--max-num-batched-tokens", 4 * count))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # ours: one for each stream
        pid = way.proxy.process.pid
        handles_before, cpu_before = len(os.listdir(f"/proc/{pid}/fd")), cpu_seconds(pid)
        answers, most_at_once, most_handles = asyncio.run(many_streams(way.proxy, count, tokens, pid))
        broken = [text for text in answers if not text.startswith("HTTP/1.1 200") or "data: [DONE]" not in text
                  or text.count('"finish_reason":null') + 1 < tokens]
        self.assertEqual(len(broken), 0, broken[:1])
        self.assertEqual(most_at_once, count, "they ran at the same time")
        kept = 2 * 256  # idle connections to P and D
        self.assertLessEqual(most_handles, handles_before + 2 * count + kept + 16)
        events = count * (tokens + 1)
        self.assertLess((cpu_seconds(pid) - cpu_before) / events, 0.001, "time for one event of one stream")
        tandem.wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= handles_before + kept, 10, "handles come back")
        tandem.assert_scores_zero(way.proxy)
        tandem.assert_blocks_come_back(way.prefill, way.decode, within_s=10)

    def test_a_decoder_that_dies_and_comes_back(self):
        for way in self.ways():
            with self.subTest(flow=way.flow):
                self.assertEqual(way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})[0], 200)
                stream = tandem.Stream(way.proxy, {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True})
                self.addCleanup(stream.close)
                for _ in range(5):
                    self.assertIn("choices", json.loads(stream.event()))
                way.decode.kill()
                rest = []
                while (event := stream.event()) is not None:
                    rest.append(event)
                self.assertNotIn("[DONE]", rest)
                self.assertIn("error", json.loads(rest[-1]))
                for streamed in (True, False):
                    status, headers, raw = answer(way.proxy, COMPLETIONS, {"prompt": PROMPT, "stream": streamed})
                    self.assertIn(status, (502, 503), raw)
                    self.assertEqual(headers["Content-Type"], "application/json")
                    self.assertIn("decoder", json.loads(raw)["error"]["message"])
                self.assertEqual(way.proxy.metric("tandem:proxy_instance_up", role="decode"), 0)
                self.assertEqual(way.proxy.get("/health")[0], 503)
                way.start_decode()
                way.decode.wait_ready()
                self.assertEqual(way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})[0], 200)
                self.assertEqual(way.proxy.metric("tandem:proxy_instance_up", role="decode"), 1)
                self.assertEqual(way.proxy.get("/health")[0], 200)
                tandem.assert_scores_zero(way.proxy)

    # Stopping, one after the other, in mid-stream.

    def begin(self, way, tokens=80):
        """A stream of which three events are here."""
        stream = tandem.Stream(way.proxy, {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True})
        self.addCleanup(stream.close)
        return stream, [stream.event() for _ in range(3)]

    def assert_whole(self, stream, events, tokens=80):
        while (event := stream.event()) is not None:
            events.append(event)
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["choices"][0]["finish_reason"], "length")
        self.assertEqual(len(events), tokens + 1)

    def assert_not_ready_and_refuses(self, way, needle):
        tandem.wait_until(lambda: way.proxy.get("/health")[0] == 503, 5, "not ready")
        status, body = way.proxy.post(COMPLETIONS, {"prompt": PROMPT}, timeout_s=10)
        self.assertEqual(status, 503, body)
        self.assertIn(needle, body["error"]["message"])

    def test_each_one_is_stopped_in_mid_stream(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.stop_each, way) for way in self.ways()]:
                done.result(120)

    def stop_each(self, way):
        stream, events = self.begin(way)
        way.prefill.process.send_signal(signal.SIGTERM)
        self.assert_not_ready_and_refuses(way, "prefiller")
        self.assert_whole(stream, events)
        self.assertEqual(way.prefill.process.wait(10), 0)
        way.start_prefill()
        way.prefill.wait_ready()
        self.assertEqual(way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})[0], 200)

        # The decoder, after the proxy was told: its stream ends as it should.
        stream, events = self.begin(way)
        change = {"type": "decode", "instances": [f"127.0.0.1:{way.decode.port}"]}
        self.assertEqual(way.proxy.post("/instances/remove", change)[0], 200)
        self.assert_not_ready_and_refuses(way, "decoder")
        self.assert_whole(stream, events)
        self.assertEqual(way.proxy.post("/instances/add", change)[0], 200)
        tandem.wait_until(lambda: way.proxy.get("/health")[0] == 200, 10, "the decoder is back")

        # The decoder, without a word before: what it has ends at once, and says so.
        stream, events = self.begin(way)
        way.decode.process.send_signal(signal.SIGTERM)
        self.assert_not_ready_and_refuses(way, "decoder")
        while (event := stream.event()) is not None:
            events.append(event)
        last = [json.loads(event) for event in events if event != "[DONE]"][-1]
        self.assertTrue("error" in last or last["choices"][0]["finish_reason"] == "abort", last)
        self.assertEqual(way.decode.process.wait(10), 0)
        way.start_decode()
        way.decode.wait_ready()
        self.assertEqual(way.proxy.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3})[0], 200)

        stream, events = self.begin(way)
        way.proxy.process.send_signal(signal.SIGTERM)
        self.assert_not_ready_and_refuses(way, "the proxy is stopping")
        self.assert_whole(stream, events)
        self.assertEqual(way.proxy.process.wait(10), 0)
        tandem.assert_blocks_come_back(way.prefill, way.decode)

    def test_a_second_signal_does_not_wait(self):
        way, = self.ways(flows=("pull",))
        stream, _ = self.begin(way, tokens=1500)
        way.proxy.process.send_signal(signal.SIGTERM)
        tandem.wait_until(lambda: "a second signal ends them" in way.proxy.log(), 5, "the proxy says what it waits for")
        way.proxy.process.send_signal(signal.SIGTERM)
        self.assertEqual(way.proxy.process.wait(5), -signal.SIGTERM)
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            while stream.event() is not None:
                pass
        tandem.assert_blocks_come_back(way.decode, within_s=5)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def many_streams(process, count, tokens, pid):
    """Opens `count` streams at once and reads all to their end: (answers, most at once, most handles of process `pid`)."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True})
    request = (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
               f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
    most = [0, 0]
    doors = asyncio.Semaphore(500)  # the kernel's queue of connections that are not accepted yet is no longer

    async def one():
        async with doors:
            reader, writer = await asyncio.open_connection(process.host, process.port)
            writer.write(request)
            await writer.drain()
        text = (await reader.read(-1)).decode(errors="replace")
        writer.close()
        return text

    async def watch():
        while True:
            metrics = await asyncio.to_thread(process.metrics)
            most[0] = max(most[0], metrics["tandem:proxy_inflight_requests"])
            most[1] = max(most[1], len(os.listdir(f"/proc/{pid}/fd")))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    answers = await asyncio.wait_for(asyncio.gather(*(one() for _ in range(count))), 120)
    watching.cancel()
    return answers, most[0], most[1]


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Streams through the proxy, pull and layerwise, on real instances with the scripted worker: their pace, their number, and
how they end when somebody dies or is stopped."""
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
from test_proxy import COMPLETIONS, PROMPT, STUB


class Streams(unittest.TestCase):
    """Pace, numbers, and ends of streams."""
    STEP_S = 0.02

    def ways(self, *, seconds_per_step=STEP_S, flows=tuple(tandem.CONNECTORS), decode_flags=()):
        pace = ("--hf-overrides", json.dumps({"seconds_per_step": seconds_per_step}))
        ways = [tandem.Pair(*STUB, flow=flow, decode_flags=(*pace, *decode_flags), start=False).start() for flow in flows]
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
        # One stream through the proxy and one beside it: the decoder makes their tokens in the same steps.
        runs = {(way.flow, name): tandem.Background(lambda process=process: self.arrivals(process, 200))
                for way in self.ways() for name, process in (("relayed", way.proxy), ("direct", way.decode))}
        gaps = {}
        for key, run in runs.items():
            times = run.result(60)
            self.assertEqual(len(times), 200, key)
            gaps[key] = statistics.median(after - before for before, after in zip(times, times[1:]))
        for flow in tandem.CONNECTORS:
            self.assertGreaterEqual(gaps[flow, "direct"], self.STEP_S * 0.9)
            self.assertAlmostEqual(gaps[flow, "relayed"], gaps[flow, "direct"], delta=0.005, msg=flow)

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
                    status, headers, raw = way.proxy.exchange("POST", COMPLETIONS, {"prompt": PROMPT, "stream": streamed},
                                                                 tandem.JSON)
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

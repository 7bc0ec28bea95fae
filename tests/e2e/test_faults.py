# SPDX-License-Identifier: Apache-2.0
"""Instances that are killed, restarted or stopped: others go on, errors come soon, blocks come back, and no answer ever
holds other text than a colocated instance gives.

Two prefillers, two decoders and a proxy serve all tests; a test starts what it killed again. Most tests speak to P and D
themselves, so that they know where a request is when the fault comes.
"""
import contextlib
import http.client
import json
import signal
import threading
import time
import unittest

import tandem_processes as tandem

LEASE_TERM_S = 2
GRACE_S = LEASE_TERM_S / 3  # of a lease whose decoder died
# Heartbeats tell within two thirds of a term, connecting anew takes at most 5 s; then some for a busy machine.
FETCH_ERROR_S = 2 * LEASE_TERM_S / 3 + 5 + 8
FLAGS = ["--max-model-len", "1024", "--block-size", "16", "--kv-lease-term", f"{LEASE_TERM_S}s"]
# A thousand tokens of prompt in half a second; 900 tokens of text in 18 s.
PREFILL_FLAGS = ["--num-gpu-blocks-override", "91", "--hf-overrides", '{"seconds_per_prefill_token": 0.0005}']
SEATS = 2
DECODE_FLAGS = ["--max-num-seqs", SEATS, "--hf-overrides", '{"seconds_per_step": 0.02}']
MEMBERS = {  # one decoder reads over TCP, the other one shared memory
    "P1": ("kv_producer", PREFILL_FLAGS, "fail"),
    "P2": ("kv_producer", PREFILL_FLAGS, "fail"),
    "D1": ("kv_consumer", [*DECODE_FLAGS, "--kv-transport", "tcp"], "fail"),
    "D2": ("kv_consumer", [*DECODE_FLAGS, "--kv-transport", "shm"], "recompute"),
}
SENTENCE = "The old clock in the tower of the town hall strikes every hour, {} times a day. "


def prompt(number, sentences=3):
    """The worker reads bytes: a sentence is 80 tokens."""
    return f"Story {number}. " + "".join(SENTENCE.format(number + i) for i in range(sentences)) + "One day"


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = tandem.Fleet(FLAGS, MEMBERS, "MooncakeConnectorV1")
        cls.addClassCleanup(cls.fleet.stop)
        cls.proxy = tandem.proxy([cls.fleet["P1"], cls.fleet["P2"]], [cls.fleet["D1"], cls.fleet["D2"]]).wait_ready()
        cls.addClassCleanup(cls.proxy.stop)

    p1 = property(lambda self: self.fleet["P1"])
    p2 = property(lambda self: self.fleet["P2"])
    d1 = property(lambda self: self.fleet["D1"])
    d2 = property(lambda self: self.fleet["D2"])

    def setUp(self):
        self.fleet.heal()  # the test before may have failed half-way
        self.addCleanup(self.check_all_come_back)  # runs last, after the streams of the test are closed

    def check_all_come_back(self):
        for instance in self.fleet.instances():
            self.assertIsNone(instance.process.poll(), f"{instance.name} died:\n{instance.log()[-2000:]}")
            instance.process.send_signal(signal.SIGCONT)
        # A prefiller that a decoder left without a word waits for the rest of the lease's term.
        tandem.assert_blocks_come_back(*self.fleet.instances(), within_s=LEASE_TERM_S + 3)
        tandem.assert_scores_zero(self.proxy)

    def expected(self, text, max_tokens=8):
        return self.fleet.text(text, max_tokens)

    def hand_over(self, prefiller, text):
        answer = prefiller.complete(text, max_tokens=1, min_tokens=1, kv_transfer_params={"do_remote_decode": True})
        self.assertTrue(answer["kv_transfer_params"]["do_remote_prefill"], answer)
        return answer["kv_transfer_params"]

    def decode(self, decoder, text, params, max_tokens=8, timeout_s=60):
        return decoder.post("/v1/completions", {"prompt": text, "max_tokens": max_tokens, "temperature": 0,
                                                "kv_transfer_params": params}, timeout_s=timeout_s)

    def decode_in_background(self, *arguments, **keywords):
        return tandem.Background(lambda: self.decode(*arguments, **keywords))

    def assert_right(self, text, answer, max_tokens=8):
        status, body = answer
        self.assertEqual(status, 200, body)
        self.assertEqual(body["choices"][0]["text"], self.expected(text, max_tokens))

    def assert_proxy_answers(self, count=4):
        for number in range(count):
            text = prompt(number)
            self.assert_right(text, (200, self.proxy.complete(text, max_tokens=8)))

    def fill_seats(self, decoder, count=SEATS):
        """Long streams in the seats of a decoder: what comes later holds its lease and waits."""
        body = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
        streams = [tandem.Stream(decoder, body) for _ in range(count)]
        for stream in streams:
            self.addCleanup(stream.close)
            stream.event()
        return streams

    def wait_for_queued(self, decoder):
        tandem.wait_until(lambda: decoder.metric("vllm:num_requests_waiting") == 1, 10, "the request waits on D")

    # P dies.

    def test_prefiller_killed_while_it_is_held_and_then_while_it_is_fetched_from(self):
        text = prompt(11)
        old = self.hand_over(self.p1, text)
        seats = self.fill_seats(self.d1)
        held = self.decode_in_background(self.d1, text, self.hand_over(self.p1, text))
        self.wait_for_queued(self.d1)
        # D2 asks a prefiller that does not answer any more: its fetch is in flight when P dies.
        params = self.hand_over(self.p1, text)
        self.p1.process.send_signal(signal.SIGSTOP)
        fetching = self.decode_in_background(self.d2, text, params)
        tandem.wait_until(lambda: self.d2.metric("tandem:requests_waiting_for_remote_kv") == 1, 10, "D2 fetches")
        self.p1.kill()
        self.assert_right(text, fetching.result(FETCH_ERROR_S))  # recomputed
        self.assertEqual(self.d1.get("/health")[0], 200)
        for stream in seats:
            self.assertIsNotNone(stream.event(), "a decode of D1 ended when P1 died")
            stream.close()
        status, body = held.result(FETCH_ERROR_S)
        self.assertGreaterEqual(status, 500, body)
        self.assertIn("P1", body["error"]["message"])
        self.assert_proxy_answers()

        self.fleet.restart("P1")
        started = time.monotonic()
        status, body = self.decode(self.d1, text, old)
        self.assertGreaterEqual(status, 500, body)
        self.assertIn("restarted", body["error"]["message"])
        self.assertLess(time.monotonic() - started, 5, "a hand-over of a dead incarnation is refused at once")
        for decoder in (self.d1, self.d2):
            self.assert_right(text, self.decode(decoder, text, self.hand_over(self.p1, text)))
        self.assertEqual(self.d1.metric("tandem:requests_waiting_for_remote_kv"), 0)

    def test_prefiller_stopped_during_a_fetch(self):
        text, later = prompt(12), prompt(13)
        decoders = (self.d1, self.d2)  # one of them gets an error, the other one recomputes
        params = [self.hand_over(self.p1, text) for _ in decoders]
        streams = [self.fill_seats(decoder, 1)[0] for decoder in decoders]
        for decoder in decoders:
            # The link between both is up and idle: D learns of the stop only by P's silence.
            self.assert_right(later, self.decode(decoder, later, self.hand_over(self.p1, later)))
        self.p1.process.send_signal(signal.SIGSTOP)
        fetches = [self.decode_in_background(decoder, text, one) for decoder, one in zip(decoders, params)]
        for decoder in decoders:
            tandem.wait_until(lambda: decoder.metric("tandem:requests_waiting_for_remote_kv") == 1, 10, "a fetch")
        while any(fetch.ended is None for fetch in fetches):
            self.assertLess(time.monotonic() - fetches[0].started, FETCH_ERROR_S, "a fetch has no end")
            for decoder, stream in zip(decoders, streams):
                self.assertEqual(decoder.get("/health", timeout_s=5)[0], 200)
                for _ in range(5):
                    self.assertIsNotNone(stream.event(), "another decode stopped")
        status, body = fetches[0].result(1)
        self.assertGreaterEqual(status, 500, body)
        self.assert_right(text, fetches[1].result(1))
        self.p1.process.send_signal(signal.SIGCONT)
        for decoder, stream in zip(decoders, streams):
            stream.close()
            self.assert_right(text, self.decode(decoder, text, self.hand_over(self.p1, text)))

    # D dies.

    def test_decoder_killed_in_mid_stream_and_while_it_holds_a_lease(self):
        way = tandem.proxy([self.p1], [self.d1]).wait_ready()  # to this decoder and no other
        self.addCleanup(way.stop)
        stream = tandem.Stream(way, {"prompt": prompt(15), "max_tokens": 700, "ignore_eos": True})
        self.addCleanup(stream.close)
        stream.event()
        held_text = prompt(14)
        seats = self.fill_seats(self.d1, SEATS - 1)
        held = self.decode_in_background(self.d1, held_text, self.hand_over(self.p1, held_text))
        self.wait_for_queued(self.d1)
        self.assertEqual(self.p1.metric("tandem:kv_leases_open"), 1)
        died = self.p1.metric("tandem:kv_lease_ends_total", reason="peer_died")
        self.d1.kill()
        tandem.assert_blocks_come_back(self.p1, within_s=GRACE_S + 1.5)
        self.assertEqual(self.p1.metric("tandem:kv_lease_ends_total", reason="peer_died"), died + 1)
        self.assertEqual(held.result(5)[0], 0)
        for seat in seats:
            seat.close()
        events = []
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            while (event := stream.event()) not in (None, "[DONE]"):
                events.append(event)
        self.assertNotIn('"finish_reason":"', "".join(events).replace(" ", ""), "a broken answer must not look whole")
        self.assertIn("error", json.loads(events[-1]))
        stream.close()
        self.assert_proxy_answers()
        tandem.assert_scores_zero(way)

        self.fleet.restart("D1")
        for prefiller in (self.p1, self.p2):
            text = prompt(16)
            self.assert_right(text, self.decode(self.d1, text, self.hand_over(prefiller, text)))
        self.assert_proxy_answers()

    def test_streams_of_a_killed_decoder_go_on_at_the_other(self):
        def events(stream):
            all_events = []
            while (event := stream.event()) is not None:
                all_events.append(json.loads(event) if event != "[DONE]" else event)
                if event != "[DONE]":
                    del all_events[-1]["id"], all_events[-1]["created"]
            return all_events

        # One stream for each seat: what finds all of them taken waits for one, and breaks off later than the fault.
        kinds = [{"logprobs": 2}, {"temperature": 0.9, "seed": 7, "n": 2}, {"temperature": 0.9},
                 {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}]
        bodies = [{"prompt": prompt(30 + number), "max_tokens": 60, "ignore_eos": True, **kind}
                  for number, kind in enumerate(kinds)]
        expected = []
        for body in bodies:
            with contextlib.closing(tandem.Stream(self.fleet.plain, body)) as stream:
                expected.append(events(stream))
        way = tandem.proxy([self.p1, self.p2], [self.d1, self.d2]).wait_ready()
        self.addCleanup(way.stop)
        streams = [tandem.Stream(way, body) for body in bodies]
        for stream in streams:
            self.addCleanup(stream.close)
        tandem.wait_until(lambda: self.d1.metric("vllm:num_requests_running") > 0
                          and self.d1.metric("vllm:generation_tokens_total") > 5, 10, "streams are under way on D1")
        self.d1.kill()
        for kind, right, stream in zip(kinds, expected, streams):
            got = events(stream)
            self.assertEqual(got[-1], "[DONE]", got[-3:])
            if kind == {"temperature": 0.9}:
                right, got = len(right), len(got)  # nobody's numbers but its own
            by_choice = lambda all_events: sorted(all_events, key=lambda event: event["choices"][0]["index"]
                                                  if isinstance(event, dict) and event["choices"] else 9)
            self.assertEqual(got if kind.get("n") is None else by_choice(got),
                             right if kind.get("n") is None else by_choice(right), kind)
        self.assertGreaterEqual(way.metric("tandem:proxy_stream_resumes_total"), 1)
        self.fleet.restart("D1")

    # The proxy dies.

    def test_proxy_killed_in_mid_stream_and_during_prefill(self):
        for sentences, max_tokens in ((3, 700), (12, 1)):
            way = tandem.proxy([self.p1], [self.d1]).wait_ready()
            stream = tandem.Background(lambda: way.post("/v1/completions", {
                "prompt": prompt(19, sentences), "max_tokens": max_tokens, "ignore_eos": True}))
            busy = self.d1 if max_tokens > 1 else self.p1
            tandem.wait_until(lambda: busy.metric("vllm:num_requests_running") == 1, 20, "the request runs")
            way.kill()
            self.assertEqual(stream.result(5)[0], 0)
            tandem.assert_blocks_come_back(self.d1, within_s=2)
            tandem.assert_blocks_come_back(self.p1, within_s=LEASE_TERM_S + 2)  # nobody is left to release its lease
            self.assertEqual(self.p1.post("/reset_prefix_cache", {})[0], 200)

    # One of two.

    def load(self, stop):
        """Eight clients that ask the proxy until `stop` is set; [(started, prompt, status, body)]."""
        answers = []

        def client(number):
            while not stop.is_set():
                text = prompt(number)
                started = time.monotonic()
                try:
                    status, body = self.proxy.post(
                        "/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0}, timeout_s=60)
                except (OSError, http.client.HTTPException) as error:
                    status, body = 0, repr(error)
                answers.append((started, text, status, body))

        clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(8)]
        for one in clients:
            one.start()
        return answers, clients

    def kill_under_load(self, name):
        for number in range(8):
            self.expected(prompt(number))
        stop = threading.Event()
        answers, clients = self.load(stop)
        try:
            tandem.wait_until(lambda: len(answers) >= 12, 60, "a dozen answers before the kill")
            killed = time.monotonic()
            self.fleet[name].kill()
            tandem.wait_until(lambda: sum(answer[0] > killed for answer in answers) >= 16, 60, "answers after the kill")
        finally:
            stop.set()
            for client in clients:
                client.join(70)
                self.assertFalse(client.is_alive(), "a client got no answer")
        for started, text, status, body in answers:
            if status == 200:
                self.assert_right(text, (status, body))
            else:
                self.assertLess(started, killed, f"a request that came after the kill failed: {status} {body}")
                self.assertNotEqual(status, 0, f"the proxy owes an answer: {body}")
        self.fleet.restart(name)
        self.assert_proxy_answers()

    def test_one_of_two_prefillers_killed_under_load(self):
        self.kill_under_load("P1")

    def test_one_of_two_decoders_killed_under_load(self):
        self.kill_under_load("D1")

    # The lease runs out.

    def test_lease_that_ends_before_it_is_read(self):
        text = prompt(17)
        decoders = (self.d1, self.d2)
        for held in (True, False):  # D knew the lease before it was stopped, or got the request only afterwards
            with self.subTest(held=held):
                seats = [seat for decoder in decoders for seat in (self.fill_seats(decoder) if held else ())]
                params = [self.hand_over(self.p1, text) for _ in decoders]
                expired = self.lease_ends()
                if not held:
                    self.stop_all(decoders)
                waiting = [self.decode_in_background(decoder, text, one) for decoder, one in zip(decoders, params)]
                if held:
                    for decoder in decoders:
                        self.wait_for_queued(decoder)
                    self.stop_all(decoders)
                tandem.wait_until(lambda: self.lease_ends() == expired + 2, LEASE_TERM_S + 3, "both leases end")
                self.overwrite(self.p1)
                for decoder in decoders:
                    decoder.process.send_signal(signal.SIGCONT)
                for seat in seats:
                    seat.close()
                status, body = waiting[0].result(FETCH_ERROR_S)
                self.assertGreaterEqual(status, 500, body)
                self.assertIn("lease", body["error"]["message"])
                self.assert_right(text, waiting[1].result(FETCH_ERROR_S))
                for decoder in decoders:
                    self.assert_right(text, self.decode(decoder, text, self.hand_over(self.p1, text)))
                    self.assertEqual(decoder.post("/reset_prefix_cache", {})[0], 200)

    def lease_ends(self):
        return sum(self.p1.metric("tandem:kv_lease_ends_total", reason=reason) for reason in ("expired", "peer_died"))

    def stop_all(self, instances):
        for instance in instances:
            self.addCleanup(instance.process.send_signal, signal.SIGCONT)
            instance.process.send_signal(signal.SIGSTOP)

    def overwrite(self, prefiller):
        """Other prompts take every block of P."""
        for number in (100, 200):
            prefiller.complete(prompt(number, sentences=12), max_tokens=1)

    # The wrong hand-over.

    def test_hand_over_of_another_prompt(self):
        ours, other = prompt(31), prompt(32)  # of the same number of tokens
        status, body = self.decode(self.d1, ours, self.hand_over(self.p1, other))
        self.assertGreaterEqual(status, 500, body)
        self.assertIn("another prompt", body["error"]["message"])
        self.assert_right(ours, self.decode(self.d2, ours, self.hand_over(self.p1, other)))

    # Repetition.

    def test_abort_and_normal_in_turn(self):
        for number in range(20):
            stream = None
            if number % 2:
                stream = tandem.Stream(self.proxy, {"prompt": prompt(60 + number), "max_tokens": 500, "ignore_eos": True})
                stream.event()
                stream.close()
            else:
                connection = self.proxy.connection()
                connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt(60 + number), "max_tokens": 500}),
                                   {"Content-Type": "application/json"})
                time.sleep(0.01 * number)
                connection.close()
            text = prompt(number % 3)
            self.assert_right(text, (200, self.proxy.complete(text, max_tokens=8)))

    def test_the_same_long_prompt_many_times(self):
        text = prompt(18, sentences=12)
        hits = self.d1.metric("vllm:prefix_cache_hits_total")
        for number in range(30):
            self.assert_right(text, self.decode(self.d1, text, self.hand_over(self.p1, text), max_tokens=4), 4)
            self.assertEqual(self.d1.metric("tandem:kv_blocks", state="used"), 0, f"after {number + 1}")
        self.assertGreater(self.d1.metric("vllm:prefix_cache_hits_total") - hits, 29 * 600)
        tandem.assert_blocks_come_back(self.p1, self.d1)


if __name__ == "__main__":
    unittest.main()

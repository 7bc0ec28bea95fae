# SPDX-License-Identifier: Apache-2.0
"""Layerwise push: every party dies, stops or leaves at every step, and the metaserver answers with whatever it likes. The
client gets an error or the right text, within the stated time, and all blocks come back.

The test itself is the proxy: it gives D the address of a metaserver that it plays, and asks P as it likes.
"""
import contextlib
import http.server
import json
import signal
import threading
import time
import unittest

import tandem_processes as tandem

LEASE_TERM_S = 2
# A dead process is noticed by its connections; a silent one by two thirds of a lease's term plus an attempt to connect.
SOON_S = 5
SILENT_S = 2 * LEASE_TERM_S / 3 + 5 + 10
FLAGS = ["--max-model-len", "2048", "--max-num-batched-tokens", "64", "--block-size", "16", "--kv-lease-term",
         f"{LEASE_TERM_S}s"]
# A prompt is 900 tokens: its prefill takes fifteen steps and a second, time enough for faults.
PREFILL_FLAGS = ["--hf-overrides", '{"seconds_per_prefill_token": 0.001}']
SENTENCE = "The ferry to the northern islands leaves at {} and comes back when the tide allows it. "
MEMBERS = {
    "P1": ("kv_producer", PREFILL_FLAGS, "fail"),
    "D1": ("kv_consumer", ["--kv-transport", "tcp"], "fail"),
    "D2": ("kv_consumer", ["--kv-transport", "shm"], "recompute"),
}


def prompt(number):
    """The worker reads bytes: a sentence is 90 tokens."""
    return f"Journey {number}. " + "".join(SENTENCE.format(number * 100 + i) for i in range(10)) + "One day"


class Metaserver(http.server.ThreadingHTTPServer):
    """Plays the proxy's /v1/metaserver: `on_call` gets the decoder's object and returns (status, body)."""
    daemon_threads = True

    def __init__(self, on_call):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802: the name is given
                length = int(self.headers["Content-Length"])
                status, body = on_call(json.loads(self.rfile.read(length)))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):  # a decoder that left
                    self.wfile.write(data)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metaserver"


class PushFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = tandem.Fleet(FLAGS, MEMBERS, "MooncakeLayerwiseConnector")
        cls.addClassCleanup(cls.fleet.stop)

    def setUp(self):
        self.addCleanup(self.check_all_come_back)

    def check_all_come_back(self):
        self.fleet.heal()
        tandem.assert_blocks_come_back(*self.fleet.instances(), within_s=2 * LEASE_TERM_S + 3)

    def expected(self, text):
        return self.fleet.text(text, 6)

    def prefill(self, delivery, text, timeout_s=60):
        """What the proxy does with a decoder's object."""
        return self.fleet["P1"].post(
            "/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0, "kv_transfer_params": delivery},
            timeout_s=timeout_s)

    def decode(self, name, text, on_call):
        """A request to a decoder, in the background; on_call plays the metaserver."""
        metaserver = Metaserver(on_call)
        self.addCleanup(metaserver.shutdown)
        self.addCleanup(metaserver.server_close)
        params = {"do_remote_prefill": True, "do_remote_decode": False, "metaserver": metaserver.url}
        return tandem.Background(lambda: self.fleet[name].post(
            "/v1/completions", {"prompt": text, "max_tokens": 6, "temperature": 0, "kv_transfer_params": params}))

    def relay(self, text, also=lambda: None):
        """A metaserver that asks P1 and then says how it went."""
        def on_call(delivery):
            try:
                status, body = self.prefill(delivery, text)
            except OSError as error:
                return 502, {"error": {"message": f"prefiller: {error!r}"}}
            also()
            return (200, {"status": "ok"}) if status == 200 else (502, body)
        return on_call

    def wait_for_push(self):
        """Until P is in the middle of a prefill whose KV is being taken."""
        tandem.wait_until(lambda: self.fleet["P1"].metric("tandem:kv_leases_open") == 1, 20, "P opened a lease")
        time.sleep(0.2)
        self.assertEqual(self.fleet["P1"].metric("vllm:num_requests_running"), 1, "P is still computing")

    def assert_outcome(self, name, text, answer):
        """By D's policy: an error, or the right text all the same."""
        status, body = answer
        if self.fleet.policy(name) == "fail":
            self.assertGreaterEqual(status, 500, body)
            self.assertTrue(body["error"]["message"], body)
        else:
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["text"], self.expected(text))

    def for_each_decoder(self):
        """(name, a prompt that nobody has seen)"""
        for name in ("D1", "D2"):
            # What a stopped P left of the last round is none of this one.
            tandem.wait_until(lambda: self.fleet["P1"].metric("tandem:kv_leases_open") == 0, 2 * LEASE_TERM_S + 4,
                              "P has no lease left")
            yield name, prompt(next(self.numbers))

    numbers = iter(range(1, 1000))

    def test_without_faults_the_text_is_right(self):
        for name, text in self.for_each_decoder():
            status, body = self.decode(name, text, self.relay(text)).result(60)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["text"], self.expected(text))
            self.assertGreater(self.fleet[name].metric("tandem:kv_transfer_bytes_total"), 0)

    def test_prefiller_killed_in_mid_push(self):
        for name, text in self.for_each_decoder():
            request = self.decode(name, text, self.relay(text))
            self.wait_for_push()
            self.fleet["P1"].kill()
            self.assert_outcome(name, text, request.result(SOON_S + 10))
            self.fleet.restart("P1")
            self.test_without_faults_the_text_is_right()

    def test_prefiller_stopped_in_mid_push(self):
        for name, text in self.for_each_decoder():
            request = self.decode(name, text, self.relay(text))
            self.wait_for_push()
            self.fleet["P1"].process.send_signal(signal.SIGSTOP)
            self.assert_outcome(name, text, request.result(SILENT_S))
            self.fleet["P1"].process.send_signal(signal.SIGCONT)

    def test_decoder_killed_in_mid_push(self):
        for name, text in self.for_each_decoder():
            request = self.decode(name, text, self.relay(text))
            self.wait_for_push()
            self.fleet[name].kill()
            self.assertEqual(request.result(SOON_S)[0], 0)
            tandem.assert_blocks_come_back(self.fleet["P1"], within_s=2 * LEASE_TERM_S)
            self.fleet.restart(name)

    def test_decoder_stopped_in_mid_push(self):
        for name, text in self.for_each_decoder():
            request = self.decode(name, text, self.relay(text))
            self.wait_for_push()
            self.fleet[name].process.send_signal(signal.SIGSTOP)
            tandem.assert_blocks_come_back(self.fleet["P1"], within_s=2 * LEASE_TERM_S + 4)
            self.fleet[name].process.send_signal(signal.SIGCONT)
            self.assert_outcome(name, text, request.result(SILENT_S))

    def test_client_leaves_in_mid_push(self):
        for name, text in self.for_each_decoder():
            metaserver = Metaserver(self.relay(text))
            params = {"do_remote_prefill": True, "metaserver": metaserver.url}
            connection = self.fleet[name].connection()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": text, "max_tokens": 6, "kv_transfer_params": params}), {"Content-Type": "application/json"})
            self.wait_for_push()
            connection.close()
            tandem.assert_blocks_come_back(self.fleet[name], within_s=2)
            tandem.assert_blocks_come_back(self.fleet["P1"], within_s=10)  # it may finish its prefill first
            metaserver.shutdown()
            metaserver.server_close()

    def test_metaserver_refuses(self):
        for status in (404, 500, 502):
            for name, text in self.for_each_decoder():
                request = self.decode(name, text, lambda _: (status, {"error": {"message": "no such request"}}))
                self.assert_outcome(name, text, request.result(SOON_S))

    def test_metaserver_is_not_there(self):
        for name, text in self.for_each_decoder():
            params = {"do_remote_prefill": True, "metaserver": f"http://127.0.0.1:{tandem.free_port()}/v1/metaserver"}
            answer = self.fleet[name].post("/v1/completions", {"prompt": text, "max_tokens": 6, "temperature": 0,
                                                                   "kv_transfer_params": params}, timeout_s=SOON_S + 10)
            self.assert_outcome(name, text, answer)

    def test_metaserver_says_yes_and_no_prefiller_comes(self):
        requests = [(name, text, self.decode(name, text, lambda _: (200, None))) for name, text in self.for_each_decoder()]
        for name, text, request in requests:
            self.assert_outcome(name, text, request.result(30))

    def test_prefill_of_another_prompt(self):
        for name, text in self.for_each_decoder():
            request = self.decode(name, text, self.relay(prompt(999)))
            self.assert_outcome(name, text, request.result(SOON_S + 10))

    def test_the_same_delivery_twice(self):
        for name, text in self.for_each_decoder():
            seen = []

            def on_call(delivery):
                answers = [tandem.Background(lambda: self.prefill(delivery, text)) for _ in range(2)]
                seen.extend(answer.result(60)[0] for answer in answers)
                return 200, {"status": "ok"}

            status, body = self.decode(name, text, on_call).result(60)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["text"], self.expected(text))
            tandem.wait_until(lambda: 200 in seen, 20, "one of the prefills was answered")  # perhaps after the decode

    def test_delivery_to_a_decoder_that_restarted(self):
        for name, text in self.for_each_decoder():
            deliveries = []

            def on_call(delivery):
                deliveries.append(delivery)
                time.sleep(60)
                return 500, None

            request = self.decode(name, text, on_call)
            tandem.wait_until(lambda: deliveries, 20, "D called the metaserver")
            self.fleet[name].kill()
            request.result(SOON_S)
            self.fleet.restart(name)
            started = time.monotonic()
            status, body = self.prefill(deliveries[0], text)
            self.assertGreaterEqual(status, 500, body)
            self.assertLess(time.monotonic() - started, 20, "P learns at once that the decoder is another one")


if __name__ == "__main__":
    unittest.main()

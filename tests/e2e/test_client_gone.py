# SPDX-License-Identifier: Apache-2.0
"""A client that leaves at any moment costs nothing after two seconds: blocks back on P and D, scores zero."""
import json
import time
import unittest

import tandem_processes as tandem

# The scripted worker: a token a byte, 64 of them or one of an answer in 10 ms.
FLAGS = ["--max-model-len", "4096", "--block-size", "16", "--max-num-batched-tokens", "64", "--load-format", "stub",
         "--hf-overrides", '{"seconds_per_step": 0.01}']
LONG = "All the bells of the city rang at once and nobody knew why they did so. " * 50


class ClientGone(unittest.TestCase):
    def setUp(self):
        self.pair = tandem.Pair(*FLAGS)
        self.addCleanup(self.pair.stop)
        self.pair.proxy.complete("Hello", max_tokens=2)

    def send(self, process, body):
        connection = process.connection()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def assert_clean(self):
        tandem.assert_blocks_come_back(self.pair.prefill, self.pair.decode)
        tandem.assert_scores_zero(self.pair.proxy)
        answer = self.pair.proxy.complete("The capital of France is", max_tokens=3)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)

    def test_before_prefill_ends(self):
        connection = self.send(self.pair.proxy, {"prompt": LONG, "max_tokens": 5})
        tandem.wait_until(lambda: self.pair.prefill.metric("vllm:num_requests_running") == 1, 10, "P prefills")
        connection.close()
        self.assert_clean()

    def test_in_mid_stream(self):
        connection = self.send(self.pair.proxy, {"prompt": "Tell me a story.", "max_tokens": 2000, "stream": True,
                                                 "ignore_eos": True})
        response = connection.getresponse()
        for _ in range(6):
            response.readline()
        self.assertEqual(self.pair.decode.metric("vllm:num_requests_running"), 1)
        response.close()
        connection.close()
        self.assert_clean()

    def test_while_waiting_for_an_answer_that_is_not_streamed(self):
        connection = self.send(self.pair.proxy, {"prompt": "Tell me a story.", "max_tokens": 2000, "ignore_eos": True})
        tandem.wait_until(lambda: self.pair.decode.metric("vllm:num_requests_running") == 1, 20, "D decodes")
        connection.close()
        self.assert_clean()

    def test_between_prefill_and_decode(self):
        # The moment between P's answer and D's start is short; leaving at many points of a short request crosses it.
        for delay_ms in range(0, 200, 8):
            connection = self.send(self.pair.proxy, {"prompt": LONG[:900], "max_tokens": 50, "stream": True})
            time.sleep(delay_ms / 1000)
            connection.close()
        self.assert_clean()

    def test_a_decoder_that_is_stopped_between_both(self):
        # D cannot answer: the proxy waits for it, the client leaves, P must be told.
        self.pair.decode.process.send_signal(19)  # SIGSTOP
        try:
            connection = self.send(self.pair.proxy, {"prompt": "Some words for the prefiller to read.", "max_tokens": 5})
            tandem.wait_until(lambda: self.pair.prefill.metric("tandem:kv_leases_open") == 1, 20, "P holds a lease")
            connection.close()
            tandem.assert_blocks_come_back(self.pair.prefill)
        finally:
            self.pair.decode.process.send_signal(18)  # SIGCONT
        self.assert_clean()

    def test_of_an_instance_asked_directly(self):
        connection = self.send(self.pair.decode, {"prompt": "Tell me a story.", "max_tokens": 2000, "ignore_eos": True})
        tandem.wait_until(lambda: self.pair.decode.metric("vllm:num_requests_running") == 1, 20, "D decodes")
        connection.close()
        tandem.wait_until(lambda: self.pair.decode.metric("vllm:num_requests_running") == 0, 1, "aborted within a second")
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()

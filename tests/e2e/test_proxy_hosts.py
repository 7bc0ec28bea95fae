# SPDX-License-Identifier: Apache-2.0
"""`tandem proxy` as the host of foreign instances: stand-ins that speak level L1 exactly, as v0.11.0rc2 and as the newest
release, in pull and layerwise mode, and every way in which they fail."""
import http.client
import itertools
import json
import time
import unittest

import instance_standin as standin
import tandem_processes as tandem


class Hosts(unittest.TestCase):
    def start(self, mode="pull", head=False, prefillers=1, decoders=1, flags=()):
        self.cluster = standin.Cluster()
        self.p = [standin.Instance(self.cluster, "prefill", mode, head) for _ in range(prefillers)]
        self.d = [standin.Instance(self.cluster, "decode", mode, head) for _ in range(decoders)]
        for instance in (*self.p, *self.d):
            self.addCleanup(instance.stop)
        self.proxy = tandem.proxy(self.p, self.d, "--connector", mode, *flags).wait_ready()
        self.addCleanup(self.proxy.stop)

    def tearDown(self):
        tandem.assert_scores_zero(self.proxy)
        for instance in (*self.p, *self.d):
            self.assertEqual(instance.problems, [])

    def text(self, prompt, count=4, **fields):
        status, body = self.proxy.post("/v1/completions", {"prompt": prompt, "max_tokens": count, **fields}, timeout_s=20)
        self.assertEqual(status, 200, body)
        return [choice["text"] for choice in body["choices"]]

    def raw_stream(self, body):
        connection = self.proxy.connection(20)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        try:
            return response.status, response.read().decode()
        except http.client.IncompleteRead as error:
            return response.status, error.partial.decode()
        finally:
            connection.close()

    def test_both_modes_of_both_releases(self):
        for mode in ("pull", "layerwise"):
            for head in (False, True):
                with self.subTest(mode=mode, head=head):
                    self.start(mode, head, prefillers=2, decoders=2)
                    for prompt in ("The capital", [1, 2, 3]):
                        self.assertEqual(self.text(prompt), [standin.generated(prompt, 4)])
                    messages = [{"role": "user", "content": "Hi"}]
                    chat = {"messages": messages, "max_tokens": 3}
                    pieces = [event["choices"][0]["delta"]["content"] for event in self.proxy.stream("/v1/chat/completions", chat)]
                    self.assertEqual("".join(pieces), standin.generated(messages, 3))
                    self.tearDown()

    def test_layerwise_serves_each_prompt_of_a_list(self):
        self.start("layerwise", head=True, prefillers=2)
        prompts = ["one", "two", "three"]
        self.assertEqual(self.text(prompts), [standin.generated(prompt, 4) for prompt in prompts])
        self.assertEqual(sum(len(p.requests) for p in self.p), 3)

    def test_a_prefiller_that_fails_is_replaced(self):
        for mode in ("pull", "layerwise"):
            for fault in ("500", "die"):
                with self.subTest(mode=mode, fault=fault):
                    self.start(mode, prefillers=2)
                    self.p[0].fault = fault
                    self.assertEqual(self.text("again"), [standin.generated("again", 4)])
                    self.assertEqual(len(self.d[0].requests), 1)
                    self.tearDown()

    def test_no_prefiller_left_is_an_error_at_once_although_decoders_wait_for_ever(self):
        for fault, expected in (("500", 502), ("400", 400), ("die", 502)):
            with self.subTest(fault=fault):
                self.start("layerwise", prefillers=2)
                for p in self.p:
                    p.fault = fault
                begin = time.monotonic()
                status, body = self.proxy.post("/v1/completions", {"prompt": "x"}, timeout_s=20)
                self.assertLess(time.monotonic() - begin, 5)
                self.assertEqual(status, expected, body)
                self.assertIn("error", body)
                tandem.wait_until(lambda: self.d[0].aborted == 1, 5, "the decoder is cut off")
                tandem.wait_until(lambda: self.d[0].posts, 5, "the metaserver answers")
                self.assertEqual([status for _, status, _ in self.d[0].posts], [502])
                self.tearDown()

    def test_a_decoder_that_fails_is_replaced_by_a_new_attempt(self):
        for mode in ("pull", "layerwise"):
            for fault in ("500", "die"):
                with self.subTest(mode=mode, fault=fault):
                    self.start(mode, decoders=2)
                    self.d[0].fault = fault
                    self.assertEqual(self.text("again"), [standin.generated("again", 4)])
                    ids = [headers["x-request-id"] for d in self.d for _, headers, _, _ in d.requests]
                    self.assertEqual(len(set(ids)), 2, "every attempt has an id of its own")
                    self.tearDown()

    def test_a_decoders_refusal_is_the_clients_answer(self):
        for mode in ("pull", "layerwise"):
            with self.subTest(mode=mode):
                self.start(mode, decoders=2)
                self.d[0].fault = self.d[1].fault = "400"
                status, body = self.proxy.post("/v1/completions", {"prompt": "x"})
                self.assertEqual((status, body["error"]["message"]), (400, "stand-in fault 400"))
                self.assertEqual(len(self.d[0].requests) + len(self.d[1].requests), 1)
                self.tearDown()

    def test_a_decoder_that_dies_in_mid_stream(self):
        expected = [" " + token for token in standin.generated("long", 9).split(" ")[1:]]
        for mode, resumes in itertools.product(("pull", "layerwise"), (1, 0)):
            with self.subTest(mode=mode, resumes=resumes):
                self.start(mode, decoders=2, flags=("--max-stream-resumes", str(resumes)))
                self.d[0].fault = "break"
                status, text = self.raw_stream({"prompt": "long", "max_tokens": 9})
                self.assertEqual(status, 200)
                *events, last = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
                texts = [json.loads(event)["choices"][0]["text"] for event in events]
                self.assertEqual(len(self.d[1].requests), resumes)
                if resumes:
                    self.assertEqual(texts, expected, "the other one goes on where the client is")
                    self.assertEqual(len({json.loads(event)["id"] for event in events}), 1)
                    self.assertEqual(last, "[DONE]")
                else:
                    self.assertEqual(texts, expected[:2], "nothing is repeated")
                    self.assertIn("error", json.loads(last))
                self.tearDown()

    def test_a_slow_decoder_posts_late_and_is_waited_for(self):
        self.start("layerwise")
        self.d[0].post_delay_s = 1.0
        self.assertEqual(self.text("slow"), [standin.generated("slow", 4)])

    def test_deadlines_on_both_sides(self):
        self.start("layerwise", flags=("--prefill-timeout", "300ms", "--max-retries", "1"))
        self.p[0].fault = "stall"
        status, body = self.proxy.post("/v1/completions", {"prompt": "x"}, timeout_s=20)
        self.assertEqual(status, 504, body)
        tandem.wait_until(lambda: self.p[0].aborted == 1 and self.d[0].aborted == 1, 5, "both sides are told")
        self.tearDown()
        self.start("layerwise", flags=("--whole-answer-timeout", "300ms", "--max-retries", "1"))
        self.d[0].fault = "stall"
        status, body = self.proxy.post("/v1/completions", {"prompt": "x"}, timeout_s=20)
        self.assertEqual(status, 504, body)
        tandem.wait_until(lambda: self.d[0].aborted == 1, 5, "the decoder is told")

    def test_a_client_that_leaves_ends_both_sides(self):
        self.start("layerwise")
        self.p[0].fault = "stall"
        connection = self.proxy.connection()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x"}))
        tandem.wait_until(lambda: self.p[0].requests, 5, "the prefill has begun")
        connection.close()
        tandem.wait_until(lambda: self.p[0].aborted == 1 and self.d[0].aborted == 1, 5, "both sides are told")
        tandem.wait_until(lambda: self.d[0].posts, 5, "the metaserver answers")
        self.assertEqual(self.d[0].posts[0][1], 404)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The same tokens colocated, through pull over shared memory and through pull over TCP, on the real model."""
import concurrent.futures
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "2048", "--max-num-batched-tokens", "128", "--block-size", "16", "--kv-cache-memory-bytes",
         "256M"]
LONG = "The old lighthouse keeper counted the ships that passed each night and wrote their names in a book. "
# Shorter than a block, exact multiples of a block, longer than a chunk (128 tokens), several languages, code, emoji.
TEXTS = [
    "Hi", "The capital of France is", "1 2 3 4 5 6 7", "def fibonacci(n):\n", "Once upon a time",
    "Water boils at", "List three colours:", "中文测试，你好。请介绍一下北京。", "😀👍🏽 What do these emoji mean? 🧑\u200d🚀",
    "नमस्ते", "Translate to French: good morning", "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    LONG, LONG * 3, LONG * 8, LONG * 20 + "The name of the last ship was",
]
# Token ids, so that lengths are exact: one token, a block less one, a block, a block and one, eight blocks.
IDS = [[504 + 7 * i for i in range(n)] for n in (1, 15, 16, 17, 128)]
PROMPTS = TEXTS[:15] + IDS


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.colocated = tandem.serve("colocated", *FLAGS)
        cls.addClassCleanup(cls.colocated.stop)
        cls.pairs = {}
        for transport in ("shm", "tcp"):
            cls.pairs[transport] = tandem.Pair(*FLAGS, transport=transport)
            cls.addClassCleanup(cls.pairs[transport].stop)
        cls.colocated.wait_ready()

    def compare(self, **fields):
        """One prompt after the other at each; the three side by side, as each computes on one thread."""
        def all_of(process):
            return [process.complete(prompt, max_tokens=24, **fields) for prompt in PROMPTS]

        with concurrent.futures.ThreadPoolExecutor() as pool:
            alone, *through = pool.map(all_of, (self.colocated, *(pair.proxy for pair in self.pairs.values())))
        for transport, answers in zip(self.pairs, through):
            for prompt, got, expected in zip(PROMPTS, answers, alone):
                with self.subTest(prompt=str(prompt)[:40], transport=transport):
                    self.assertEqual(got["choices"][0]["text"], expected["choices"][0]["text"])
                    self.assertEqual(got["choices"][0]["finish_reason"], expected["choices"][0]["finish_reason"])
                    self.assertEqual(got["usage"], expected["usage"])

    def test_greedy_tokens_are_the_same_every_way(self):
        self.compare()
        for transport, pair in self.pairs.items():
            self.assertGreater(pair.transfers(transport), 0, "nothing went over the transport under test")

    def test_sampled_tokens_with_a_seed_are_the_same_every_way(self):
        self.compare(temperature=0.8, seed=1234, ignore_eos=True)

    def test_at_once_they_are_the_same_too(self):
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            alone = pool.submit(lambda: [self.colocated.complete(prompt, max_tokens=16) for prompt in PROMPTS])
            texts = {transport: list(pool.map(lambda p: pair.proxy.complete(p, max_tokens=16)["choices"][0]["text"], PROMPTS))
                     for transport, pair in self.pairs.items()}
            expected = [answer["choices"][0]["text"] for answer in alone.result(300)]
        for transport, got in texts.items():
            self.assertEqual(got, expected, transport)

    def test_the_model_knows_the_capital_of_france(self):
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
                "max_tokens": 32}
        for process in (self.colocated, self.pairs["shm"].proxy, self.pairs["tcp"].proxy):
            status, answer = process.post("/v1/chat/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertIn("Paris", answer["choices"][0]["message"]["content"])
            text = "".join(choice["delta"].get("content") or ""
                           for event in process.stream("/v1/chat/completions", body) for choice in event["choices"])
            self.assertEqual(text, answer["choices"][0]["message"]["content"])

    def test_several_choices_and_prompts_are_the_same(self):
        fields = dict(n=3, temperature=0.9, seed=7, max_tokens=12)
        prompts = [LONG, "Hi", LONG * 4]
        expected = self.colocated.complete(prompts, **fields)
        self.assertEqual(len(expected["choices"]), 9)
        for transport, pair in self.pairs.items():
            got = pair.proxy.complete(prompts, **fields)
            self.assertEqual([c["text"] for c in got["choices"]], [c["text"] for c in expected["choices"]], transport)
            tandem.assert_blocks_come_back(pair.prefill, pair.decode)


if __name__ == "__main__":
    unittest.main()

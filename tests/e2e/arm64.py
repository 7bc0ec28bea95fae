#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An arm64 tandem (TANDEM_ARM64_BINARY, which may run under qemu) next to an x86-64 one (TANDEM_BINARY): the same tokens
alone, and through prefill on one and decode on the other, both ways, over TCP. `make arm64` runs it.

The portable kernels compute the same on both. With the best kernels of each the sums are taken in another order: then the
probabilities must be near. KV crosses in BF16, so that its bytes are what is tried, not only its numbers."""
import os
import sys
import tempfile
import unittest

import tandem_processes as tandem
from parity_table import make_model

ARM64 = os.environ["TANDEM_ARM64_BINARY"]
FLAGS = ["--max-model-len", "512", "--block-size", "16", "--kv-cache-memory-bytes", "16M", "--kv-transport", "tcp"]
PROMPTS = [[5 + 7 * i % 89 for i in range(count)] for count in (1, 16, 60, 203)]
NEAR = 0.02  # of a log probability
tandem.START_TIMEOUT_S = 300


class Arm64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = make_model("tiny-t7", folder.name)

    def start(self, binary, *flags, **serve):
        process = tandem.serve(serve.pop("name"), *FLAGS, *flags, model=self.model, binary=binary, **serve)
        self.addCleanup(process.stop)
        return process

    def ask(self, process, prompt):
        choice = process.complete(prompt, max_tokens=8, logprobs=1, ignore_eos=True)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def both(self, *flags):
        """The answers of a whole instance of each architecture."""
        alone = [self.start(binary, *flags, name=name) for name, binary in (("x86-64", tandem.BINARY), ("arm64", ARM64))]
        return [[self.ask(process.wait_ready(), prompt) for prompt in PROMPTS] for process in alone]

    def through_pair(self, prefill, decode, *flags):
        sides = (self.start(prefill, *flags, name="P", role="kv_producer"),
                 self.start(decode, *flags, name="D", role="kv_consumer"))
        proxy = tandem.proxy(sides[:1], sides[1:])
        self.addCleanup(proxy.stop)
        for process in (*sides, proxy):
            process.wait_ready()
        answers = [self.ask(proxy, prompt) for prompt in PROMPTS]
        self.assertGreater(sides[1].metric("tandem:kv_transfer_bytes_total", transport="tcp"), 0)
        tandem.assert_blocks_come_back(*sides, within_s=10)
        return answers

    def assert_near(self, found, expected):
        for (text, scores), (expected_text, expected_scores) in zip(found, expected, strict=True):
            self.assertEqual(text, expected_text)
            for score, wanted in zip(scores, expected_scores, strict=True):
                self.assertAlmostEqual(score, wanted, delta=NEAR)

    def test_portable_kernels_give_the_same_tokens_alone_and_across(self):
        x86, arm = self.both("--isa", "portable")
        self.assert_near(arm, x86)
        for prefill, decode in ((tandem.BINARY, ARM64), (ARM64, tandem.BINARY)):
            with self.subTest(prefill=prefill, decode=decode):
                self.assert_near(self.through_pair(prefill, decode, "--isa", "portable"), x86)
        print(f"portable: largest difference of a log probability {largest_difference(arm, x86)}")

    def test_the_best_kernels_of_each_are_near(self):
        x86, arm = self.both()
        for (_, scores), (_, expected) in zip(arm, x86, strict=True):
            self.assertAlmostEqual(scores[0], expected[0], delta=NEAR)
        print(f"best: {sum(a[0] == b[0] for a, b in zip(arm, x86))} of {len(x86)} texts equal")

    def test_an_instruction_set_of_the_other_architecture_is_refused(self):
        process = self.start(ARM64, "--isa", "avx2", name="wrong")
        self.assertNotEqual(process.process.wait(60), 0)
        self.assertIn("cannot run avx2; the best it has is dotprod", process.log())


def largest_difference(one, other):
    return max(abs(a - b) for (_, x), (_, y) in zip(one, other) for a, b in zip(x, y))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))

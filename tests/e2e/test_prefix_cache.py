# SPDX-License-Identifier: Apache-2.0
"""Full and partial prefix hits, on D and on P, change no token."""
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "2048", "--block-size", "16", "--kv-cache-memory-bytes", "128M"]
SENTENCE = "A river runs from the hills to the sea and passes seven towns on its way. "


class PrefixCache(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = tandem.serve("plain", *FLAGS, "--no-enable-prefix-caching").wait_ready()
        cls.addClassCleanup(cls.plain.stop)

    def check(self, prefill_flags, decode_flags, hits_on):
        pair = tandem.Pair(*FLAGS, prefill_flags=prefill_flags, decode_flags=decode_flags)
        self.addCleanup(pair.stop)
        first = SENTENCE * 10
        prompts = [first, first, first + "The first town is called", SENTENCE * 5 + "But one day", first * 2, first]
        for prompt in prompts:
            expected = self.plain.complete(prompt, max_tokens=20)["choices"][0]["text"]
            got = pair.proxy.complete(prompt, max_tokens=20)["choices"][0]["text"]
            self.assertEqual(got, expected)
        for name, instance in (("P", pair.prefill), ("D", pair.decode)):
            hits = instance.metric("vllm:prefix_cache_hits_total")
            if name in hits_on:
                self.assertGreater(hits, 300, f"{name} should have found the repeated prefixes")
            else:
                self.assertEqual(hits, 0, name)
        tandem.assert_blocks_come_back(pair.prefill, pair.decode)

    def test_hits_on_both(self):
        self.check([], [], "PD")

    def test_hits_on_the_prefiller_alone(self):
        self.check([], ["--no-enable-prefix-caching"], "P")

    def test_hits_on_the_decoder_alone(self):
        self.check(["--no-enable-prefix-caching"], [], "D")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""64 concurrent streams through pools for three requests: all finish, none differs, all blocks come back."""
import concurrent.futures
import unittest

import tandem_processes as tandem

STREAMS = 64
# A request below has about 60 prompt tokens and 40 new ones: 7 blocks of 16. Three of them need 21.
POOL = ["--block-size", "16", "--max-model-len", "320", "--num-gpu-blocks-override", "22"]


class Capacity(unittest.TestCase):
    def test_64_streams_through_pools_for_three_requests(self):
        colocated = tandem.serve("colocated", "--block-size", "16", "--max-model-len", "320").wait_ready()
        self.addCleanup(colocated.stop)
        pair = tandem.Pair(*POOL)
        self.addCleanup(pair.stop)
        prompts = [f"Story number {i}. " + "The cat sat on the mat and looked at the moon. " * 5 for i in range(STREAMS)]
        fields = dict(max_tokens=40, temperature=0, ignore_eos=True)

        def colocated_text(prompt):
            return colocated.complete(prompt, **fields)["choices"][0]["text"]

        def streamed_text(prompt):
            events = list(pair.proxy.stream("/v1/completions", {"prompt": prompt, **fields}, timeout_s=500))
            self.assertEqual(sum(len(event["choices"]) for event in events), 40)
            return "".join(choice["text"] for event in events for choice in event["choices"])

        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            expected = list(pool.map(colocated_text, prompts))
            got = list(pool.map(streamed_text, prompts))
        self.assertEqual(got, expected)
        tandem.assert_blocks_come_back(pair.prefill, pair.decode)
        tandem.assert_scores_zero(pair.proxy)

    def test_preemption_changes_no_token(self):
        # Colocated: eight long answers in a pool for about three of them must preempt.
        roomy = tandem.serve("roomy", "--block-size", "16", "--max-model-len", "320").wait_ready()
        self.addCleanup(roomy.stop)
        tight = tandem.serve("tight", *POOL).wait_ready()
        self.addCleanup(tight.stop)
        prompts = [f"{i}: tell me a long story about a fox" for i in range(8)]

        def ask(process):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                return list(pool.map(
                    lambda p: process.complete(p, max_tokens=120, ignore_eos=True)["choices"][0]["text"], prompts))

        self.assertEqual(ask(tight), ask(roomy))
        self.assertGreater(tight.metric("vllm:num_preemptions_total"), 0)
        tandem.assert_blocks_come_back(tight)

    def test_a_decoder_that_preempts_answers_whole(self):
        """Nobody is sent back to the proxy: what was generated before the preemption is part of the answer."""
        roomy = tandem.serve("roomy", "--block-size", "16", "--max-model-len", "320").wait_ready()
        self.addCleanup(roomy.stop)
        pair = tandem.Pair("--block-size", "16", "--max-model-len", "320", decode_flags=POOL[-2:])
        self.addCleanup(pair.stop)
        fields = dict(max_tokens=100, ignore_eos=True)

        def ask(process):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                return list(pool.map(lambda i: process.complete(f"{i}: tell me a long story about a fox", **fields), range(8)))

        for got, expected in zip(ask(pair.proxy), ask(roomy)):
            self.assertEqual(got["choices"], expected["choices"])
            self.assertEqual(got["usage"], expected["usage"])
        self.assertGreater(pair.decode.metric("vllm:num_preemptions_total"), 0)
        tandem.assert_blocks_come_back(pair.prefill, pair.decode)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Data parallelism in one process: any number of ranks gives the text of one, colocated and over hand-overs."""
import concurrent.futures
import itertools
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "512", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "128"]
STORY = "The old lighthouse keeper counted the ships that passed each night and wrote their names in a book. "
STARTS = ["Hi", "The capital of France is", "def fibonacci(n):\n", "中文测试，你好。请介绍一下北京。", STORY, STORY * 3,
          "Once upon a time", "Water boils at"]
PROMPTS = [f"{start} {number}" for number, start in itertools.product(range(4), STARTS)]  # 32
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}


def text_of(process, prompt, **fields):
    return process.complete(prompt, **{"max_tokens": 8, **fields})["choices"][0]["text"]


def at_once(process, **fields):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: text_of(process, prompt, **fields), PROMPTS))


class DataParallel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        one = tandem.serve("one", *FLAGS).wait_ready()
        try:
            cls.expected = [text_of(one, prompt) for prompt in PROMPTS]
            cls.sampled = one.complete(STORY, n=4, temperature=0.9, seed=7, max_tokens=8)["choices"]
        finally:
            one.stop()

    def start(self, name, *flags, **options):
        process = tandem.serve(name, *FLAGS, *flags, **options).wait_ready()
        self.addCleanup(process.stop)
        return process

    def per_rank(self, process, ranks, name="vllm:generation_tokens_total"):
        return [process.metric(name, engine=str(rank)) for rank in range(ranks)]

    def check(self, process, ranks):
        self.assertEqual(at_once(process), self.expected)
        tokens = self.per_rank(process, ranks)
        self.assertTrue(all(count > 0 for count in tokens), f"every rank took some: {tokens}")
        choices = process.complete(STORY, n=4, temperature=0.9, seed=7, max_tokens=8)["choices"]
        self.assertEqual([c["text"] for c in choices], [c["text"] for c in self.sampled])
        tandem.assert_blocks_come_back(process)

    def test_ranks_give_the_text_of_one(self):
        for ranks, flags in ((2, ["-tp", "3"]), (4, []), (1, ["--async-scheduling"]), (3, ["--async-scheduling"])):
            with self.subTest(ranks=ranks, flags=flags):
                process = self.start(f"dp{ranks}", "-dp", ranks, *flags)
                self.check(process, ranks)
                infos = [s for s in process.metrics() if s.startswith("vllm:cache_config_info")]
                self.assertEqual(len([s for s in infos if 'num_gpu_blocks="128"' in s]), ranks, infos)
                self.assertIn(f'"dp_size":{ranks}', process.get("/tandem/info")[1].decode())
                process.stop()

    def test_the_header_names_the_rank(self):
        process = self.start("named", "-dp", "3")
        for rank in (2, 0, 2):
            before = self.per_rank(process, 3)
            status, answer = process.post("/v1/completions", {"prompt": "Hi 0", "temperature": 0, "max_tokens": 8},
                                          {"X-data-parallel-rank": str(rank)})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["text"], self.expected[0])
            after = self.per_rank(process, 3)
            self.assertEqual([b > a for a, b in zip(before, after)], [r == rank for r in range(3)])
        for wrong in ("3", "-1", "second"):
            status, answer = process.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1},
                                          {"X-data-parallel-rank": wrong})
            self.assertEqual(status, 400, answer)
            self.assertIn(f"the header X-data-parallel-rank is '{wrong}', expected a rank of this instance: 0 to 2",
                          answer["error"]["message"])

    def test_a_prompt_goes_to_the_rank_that_knows_it(self):
        process = self.start("warm", "-dp", "3")
        for prompt in (STORY * 3, STORY[::-1] * 2, STORY * 3 + "And then", STORY[::-1] * 2):
            text_of(process, prompt)
        hits = self.per_rank(process, 3, "vllm:prefix_cache_hits_total")
        self.assertEqual([hit > 0 for hit in hits], [True, True, False], hits)

    def test_two_ranks_hand_over_to_four(self):
        for connector, name in CONNECTORS.items():
            with self.subTest(connector=connector):
                transfer = {"kv_connector": name, "kv_connector_extra_config": {
                    "prefill": {"dp_size": 2, "tp_size": 1}, "decode": {"dp_size": 4, "tp_size": 1}}}
                flags = ["--async-scheduling"] if connector == "layerwise" else []
                prefill = self.start("P", "-dp", "2", *flags, role="kv_producer", transfer=transfer)
                decode = self.start("D", "-dp", "4", *flags, role="kv_consumer", transfer=transfer)
                proxy = tandem.proxy([prefill], [decode], "--connector", connector).wait_ready()
                self.addCleanup(proxy.stop)
                self.assertEqual(at_once(proxy), self.expected)
                for process, ranks in ((prefill, 2), (decode, 4)):
                    tokens = self.per_rank(process, ranks)
                    self.assertTrue(all(count > 0 for count in tokens), f"{process.name}: {tokens}")
                received = decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
                self.assertGreater(received, 0)
                tandem.assert_blocks_come_back(prefill, decode)
                for process in (proxy, decode, prefill):
                    process.stop()

    def test_stop_strings_and_streams_with_async_scheduling(self):
        """What ends a request is noticed when a step behind it is in flight already: nothing of that may show."""
        plain, ahead = self.start("plain"), self.start("ahead", "--async-scheduling")
        fields = dict(max_tokens=24, logprobs=2, stop=["the", ".", "\n"], n=2, temperature=0.7, seed=3)
        for prompt in PROMPTS[::5]:
            expected, got = (process.complete(prompt, **fields) for process in (plain, ahead))
            for answer in (expected, got):
                for name in ("id", "created", "model"):
                    answer.pop(name)
            self.assertEqual(got, expected)
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
            texts = ["".join(event["choices"][0]["text"] for event in process.stream("/v1/completions", body))
                     for process in (plain, ahead)]
            self.assertEqual(*texts)
        tandem.assert_blocks_come_back(plain, ahead)

    def test_a_config_that_says_something_else_is_refused(self):
        transfer = {"kv_connector_extra_config": {"decode": {"dp_size": 4}}}
        process = tandem.serve("refused", *FLAGS, "-dp", "2", role="kv_consumer", transfer=transfer)
        self.addCleanup(process.stop)
        self.assertNotEqual(process.process.wait(30), 0)
        self.assertIn("KV transfer 'decode' config has a conflicting data parallel size. Expected 2, but got 4.",
                      process.log())


if __name__ == "__main__":
    unittest.main()

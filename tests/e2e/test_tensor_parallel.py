# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism and KV types on the real model (9 heads, 3 KV heads), in one process."""
import subprocess
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "1024", "--max-num-batched-tokens", "64", "--kv-cache-memory-bytes", "128M"]
STORY = "The old lighthouse keeper counted the ships that passed each night and wrote their names in a book. "
PROMPTS = ["Hi", "The capital of France is", "def fibonacci(n):\n", "中文测试，你好。请介绍一下北京。", STORY * 8]
CAPITAL = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 32}


class TensorParallel(unittest.TestCase):
    def start(self, name, *flags, **options):
        process = tandem.serve(name, *FLAGS, *flags, **options).wait_ready()
        self.addCleanup(process.stop)
        return process

    def texts(self, process):
        return [process.complete(prompt, max_tokens=32)["choices"][0]["text"] for prompt in PROMPTS]

    def test_three_ranks_give_the_text_of_one(self):
        expected = self.texts(self.start("one"))
        for threads in ("1", "3"):  # ranks that share a thread, and ranks with threads of their own
            split = self.start("three", "-tp", "3", "--threads", threads)
            self.assertIn(f"TP 3 on {threads} threads", split.log())
            self.assertEqual(self.texts(split), expected, f"{threads} threads")
            tandem.assert_blocks_come_back(split)
            split.stop()

    def test_int8_kv_takes_half_the_memory_and_still_answers(self):
        blocks = {}
        for kind in ("bfloat16", "int8"):
            process = self.start(kind, "--kv-cache-dtype", kind, "-tp", "3")
            blocks[kind] = int(next(s for s in process.metrics() if s.startswith("vllm:cache_config_info"))
                               .split('num_gpu_blocks="')[1].split('"')[0])
            self.assertIn(f"MiB of {kind} (", process.log())
            status, answer = process.post("/v1/chat/completions", CAPITAL)
            self.assertEqual(status, 200, answer)
            self.assertIn("Paris", answer["choices"][0]["message"]["content"])
            process.stop()
        self.assertAlmostEqual(blocks["int8"] / blocks["bfloat16"], 128 / 68, places=1)  # heads of 64, and a scale

    def test_what_cannot_be_split_or_bound_is_refused_at_once(self):
        def refusal(*flags, environment=None):
            process = tandem.serve("refused", *FLAGS, *flags, environment=environment)
            self.addCleanup(process.stop)
            try:
                self.assertNotEqual(process.process.wait(30), 0)
            except subprocess.TimeoutExpired:
                self.fail(f"{flags} was not refused")
            self.assertNotIn("loading weights", process.log())
            return process.log()

        self.assertIn("tensor parallel size 2 does not divide the model's 9 attention heads", refusal("-tp", "2"))
        self.assertIn("tensor parallel size 9 does not divide the model's intermediate size 1536", refusal("-tp", "9"))
        self.assertIn("CPU 1000 of rank 0 cannot be used",
                      refusal(environment={"VLLM_CPU_OMP_THREADS_BIND": "1000"}))


if __name__ == "__main__":
    unittest.main()

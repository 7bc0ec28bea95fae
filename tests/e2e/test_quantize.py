# SPDX-License-Identifier: Apache-2.0
"""tandem quantize, and serving what it wrote: the answers of W8A8 made at load, and refusals that name both sides."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "256", "--max-num-batched-tokens", "64", "--kv-cache-memory-bytes", "16M", "--threads", "2"]
PROMPT = {"prompt": [5, 17, 99, 3, 42, 42, 8], "max_tokens": 12, "temperature": 0, "logprobs": 3}
TEXT = "The old lighthouse keeper counted the ships that passed and wrote their names in a book. " * 8


class Quantize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "text.txt").write_text(TEXT)
        for shape in ("tiny-t7", "tiny-t2"):
            subprocess.run([os.environ["TANDEM_MAKE_MODEL"], "--shape", shape, "--output", cls.folder / shape],
                           check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def quantize(self, source, target, *flags, succeeds=True):
        done = subprocess.run([tandem.BINARY, "quantize", self.folder / source, self.folder / target,
                               "--threads", "2", *flags], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode == 0, succeeds, done.stderr)
        return done.stdout if succeeds else done.stderr

    def answer(self, model, *flags):
        process = tandem.serve("instance", *FLAGS, *flags, model=str(self.folder / model)).wait_ready()
        self.addCleanup(process.stop)
        status, body = process.post("/v1/completions", dict(PROMPT, model=str(self.folder / model)))
        self.assertEqual(status, 200, body)
        log = process.log()
        process.stop()
        return body["choices"][0]["text"], body["choices"][0]["logprobs"], log

    def test_what_is_written_serves_as_w8a8_made_at_load(self):
        for shape in ("tiny-t7", "tiny-t2"):
            output = self.quantize(shape, f"{shape}-dynamic", "--text", str(self.folder / "text.txt"))
            self.assertRegex(output, r"model\.layers\.0\.self_attn\.q_proj +W8A8_DYNAMIC +0\.\d+ % +\d\.\d+ %")
            before, after = map(float, re.search(r"perplexity over \d+ tokens of \S+: ([\d.]+) before, ([\d.]+) after",
                                                 output).groups())
            self.assertLess(abs(after / before - 1), 0.05)
            text, logprobs, log = self.answer(f"{shape}-dynamic", "--quantization", "ascend")
            self.assertIn("ascend in bfloat16", log)
            expected_text, expected_logprobs, _ = self.answer(shape, "--quantization", "w8a8")
            self.assertEqual((text, logprobs), (expected_text, expected_logprobs), shape)
            self.assertEqual(self.answer(f"{shape}-dynamic")[:2], (text, logprobs), "the checkpoint's own word")

    def test_static_with_a_calibration_text(self):
        output = self.quantize("tiny-t7", "static", "--calibration", str(self.folder / "text.txt"),
                               "--exclude", "*.down_proj", "--dynamic", "*.o_proj", "--shard-size", "1M")
        self.assertRegex(output, r"model\.layers\.0\.mlp\.up_proj +W8A8 +0")
        self.assertRegex(output, r"model\.layers\.0\.self_attn\.o_proj +W8A8_DYNAMIC +0")
        self.assertRegex(output, r"model\.layers\.0\.mlp\.down_proj +FLOAT +- +0\.000 %")
        self.assertIn("18 of 21 modules in int8", output)
        self.answer("static")

    def test_refusals_name_both_sides(self):
        self.quantize("tiny-t7", "int8")
        self.assertIn("is quantised already (ascend)", self.quantize("int8", "twice", succeeds=False))
        self.assertIn("is not empty", self.quantize("tiny-t7", "int8", succeeds=False))
        self.assertIn("the pattern *.up matches no module",
                      self.quantize("tiny-t7", "none", "--exclude", "*.up", succeeds=False))
        for model, flag, found in (("int8", "w8a8", "quantised as ascend"), ("int8", "gptq", "quantised as ascend"),
                                   ("int8", "none", "quantised as ascend"), ("tiny-t7", "ascend", "not quantised"),
                                   ("tiny-t7", "fp8", "not quantised")):
            process = tandem.serve("refused", *FLAGS, "-q", flag, model=str(self.folder / model))
            self.addCleanup(process.stop)
            self.assertEqual(process.process.wait(30), 1)
            self.assertIn(f"--quantization {flag} was given", process.log())
            self.assertIn(found, process.log())


if __name__ == "__main__":
    unittest.main()

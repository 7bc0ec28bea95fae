# SPDX-License-Identifier: Apache-2.0
"""`tandem bench serve` against real servers: a scripted worker whose timing is known, a real model, prefiller and decoder
behind a proxy; and two load generators of others (tools/fetch_load_tools.sh) against the same, with the same figures: vLLM's
own `vllm bench serve` and evalscope's `evalscope perf`."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import tandem_processes as tandem

STEP_S = 0.025
HERE = pathlib.Path(__file__).resolve().parent
TOOLS = pathlib.Path(os.environ.get("TANDEM_LOAD_TOOLS", tandem.ROOT / ".cache" / "load_tools"))
CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
COMPLETIONS = ("--backend", "openai", "--endpoint", "/v1/completions")


def small_tokenizer():
    """A folder with a tokenizer.json of one token a printable ASCII character, which everybody here loads at once."""
    folder = tempfile.TemporaryDirectory(prefix="tandem-tokenizer-")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["\u0120", "\u010a"]  # blank and line end, as GPT-2 has them
    (pathlib.Path(folder.name) / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level, "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)},
                                         "merges": []}}))
    return folder


FOLDER = small_tokenizer()  # goes with the process
TOKENIZER = FOLDER.name
STUB = ("--load-format", "stub", "--tokenizer", TOKENIZER, "--max-model-len", 2048,
        "--hf-overrides", json.dumps({"seconds_per_step": STEP_S}))


class Run:
    """One finished run: exit code, what it printed, the JSON that it wrote."""

    def __init__(self, command, server, flags):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*map(str, command), "--host", "127.0.0.1", "--port", str(server.port), "--save-result",
                 "--result-dir", folder, "--percentile-metrics", "ttft,tpot,itl,e2el", *map(str, flags)],
                capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
            self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
            self.files = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}

    @property
    def result(self):
        assert len(self.files) == 1, f"{self.files.keys()}\n{self.out}\n{self.err}"
        return json.loads(next(iter(self.files.values())))

    def row(self, label):
        """The value after a label of the table."""
        return float(re.search(rf"^{re.escape(label)}: +([\d.]+) *$", self.out, re.M).group(1))


def ours(server, *flags):
    return Run([tandem.BINARY, "bench", "serve"], server, ["--tokenizer", TOKENIZER, *flags])


def fetched(name):
    if not (TOOLS / name / "complete").exists():
        raise AssertionError(f"{TOOLS / name} is missing: run tools/fetch_load_tools.sh")
    return TOOLS / name


def vllms(server, model, *flags):
    return Run([fetched("venv") / "bin" / "python", HERE / "vllm_bench.py", fetched("vllm-0.11.0")], server,
               ["--tokenizer", TOKENIZER, "--model", model, "--disable-tqdm", *flags])


def evalscopes(server, prompts, tokens, at_once, endpoint):
    """The figures of `evalscope perf` under the names that the others have for them."""
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder) / "prompts.txt"
        lines.write_text("".join(f"{prompt}\n" for prompt in prompts))
        # For completions a line is the prompt, for chat it is made the user's message.
        done = subprocess.run(
            [*map(str, (fetched("venv") / "bin" / "python", HERE / "evalscope_bench.py")), "--api", "openai",
             "--url", f"http://127.0.0.1:{server.port}{endpoint}", "--model", "scripted", "--dataset", "line_by_line",
             "--dataset-path", lines, "--number", str(len(prompts)), "--parallel", str(at_once),
             "--max-tokens", str(tokens), "--extra-args", '{"ignore_eos": true}', "--outputs-dir", folder,
             "--no-timestamp"], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        found = {path.stem: json.loads(path.read_text()) for path in pathlib.Path(folder).glob("scripted/*/*.json")}
    summary = found["benchmark_summary"]
    median = next(row for row in found["benchmark_percentile"] if row["Percentiles"] == "50%")
    completed = summary["Success Requests"]
    return {"num_prompts": summary["Total Requests"], "completed": completed, "failed": summary["Failed Requests"],
            "total_input_tokens": round(completed * summary["Avg Input Tokens"]),
            "total_output_tokens": round(completed * summary["Avg Output Tokens"]),
            "median_ttft_ms": median["TTFT (ms)"], "median_tpot_ms": median["TPOT (ms)"],
            "median_itl_ms": median["ITL (ms)"], "median_e2el_ms": 1000 * median["Latency (s)"],
            "output_throughput": summary["Output Throughput (tok/s)"]}


class Counters:
    """What a server counted between two moments."""
    NAMES = ("generation_tokens_total", "prompt_tokens_total", "prefix_cache_hits_total",
             "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count",
             "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
             "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count")

    def __init__(self, server):
        self.server = server
        self.before = self._now()

    def _now(self):
        values = self.server.metrics()
        return {name: sum(v for series, v in values.items() if series.split("{")[0] == f"vllm:{name}")
                for name in self.NAMES}

    def since(self, name):
        return self._now()[name] - self.before[name]

    def mean_ms(self, name):
        return 1000 * self.since(f"{name}_seconds_sum") / self.since(f"{name}_seconds_count")


LOAD = ("--num-prompts", 16, "--random-input-len", 40, "--random-output-len", 16, "--ignore-eos",
        "--max-concurrency", 8, "--ready-check-timeout-sec", 0)


class ScriptedWorker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tandem.serve("S", *STUB, model="scripted").wait_ready()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def check_counts(self, run, counters, backend):
        self.assertEqual(run.code, 0, run.err)
        result = run.result
        self.assertEqual((result["completed"], result["failed"]), (16, 0))
        self.assertEqual(result["total_output_tokens"], 16 * 16)
        self.assertEqual(counters.since("generation_tokens_total"), 16 * 16)
        if backend is COMPLETIONS:
            self.assertEqual(result["total_input_tokens"], counters.since("prompt_tokens_total"))

    def test_counts_and_times_of_both_backends(self):
        for backend in (COMPLETIONS, CHAT):
            with self.subTest(backend[1]):
                counters = Counters(self.server)
                run = ours(self.server, *LOAD, *backend)
                self.check_counts(run, counters, backend)
                result, step_ms = run.result, 1000 * STEP_S
                # A request waits for the end of the step under way and then for its own.
                self.assertTrue(step_ms <= result["median_ttft_ms"] <= 4 * step_ms, run.out)
                self.assertTrue(step_ms <= result["median_tpot_ms"] <= 1.5 * step_ms, run.out)
                self.assertTrue(0.9 * step_ms <= result["median_itl_ms"] <= 1.3 * step_ms, run.out)
                # The server's own histograms see the same, less the way to the client and back.
                for ours_ms, theirs_ms in (
                        (result["mean_ttft_ms"], counters.mean_ms("time_to_first_token")),
                        (result["mean_tpot_ms"], counters.mean_ms("inter_token_latency")),
                        (result["mean_e2el_ms"], counters.mean_ms("e2e_request_latency"))):
                    self.assertAlmostEqual(ours_ms / theirs_ms, 1, delta=0.15, msg=run.out)
                self.assertEqual(run.row("Total generated tokens"), 16 * 16)
                self.assertAlmostEqual(run.row("Median ITL (ms)"), result["median_itl_ms"], delta=0.01)

    def test_vllms_own_tool_has_the_same_figures(self):
        for backend in (COMPLETIONS, CHAT):
            with self.subTest(backend[1]):
                flags = [flag for flag in LOAD if flag != "--ready-check-timeout-sec"][:-1] + [*backend]
                before = ours(self.server, "--model", "scripted", *LOAD, *backend).result
                counters = Counters(self.server)
                run = vllms(self.server, "scripted", *flags)
                self.assertEqual(run.code, 0, run.err)
                # It cannot leave the request out with which it begins.
                self.assertEqual(counters.since("generation_tokens_total"), 17 * 16)
                vllm, tandem_run = run.result, ours(self.server, "--model", "scripted", *LOAD, *backend)
                result = tandem_run.result
                for key in ("completed", "total_input_tokens", "total_output_tokens", "num_prompts", "backend",
                            "request_rate", "burstiness", "max_concurrency", "model_id", "tokenizer_id"):
                    self.assertEqual(result[key], vllm[key], key)
                self.check_times(vllm, before, result)
                self.assertEqual([key for key in result if key != "failed"], list(vllm), "keys and their order")
                self.assertEqual(self.labels(tandem_run.out), self.labels(run.out), "lines of the table")

    def check_times(self, theirs, before, after):
        """Two runs of ours stand around theirs: a machine that others use, too, is not always as fast."""
        step_ms = 1000 * STEP_S  # a first token waits for the end of the step under way, which may be a whole one
        for key, share, more in (("median_ttft_ms", 0.2, step_ms), ("median_tpot_ms", 0.2, 0), ("median_itl_ms", 0.2, 0),
                                 ("median_e2el_ms", 0.2, 0), ("output_throughput", 0.25, 0)):
            low, high = sorted((before[key], after[key]))
            self.assertTrue(low * (1 - share) - more <= theirs[key] <= high * (1 + share) + more,
                            f"{key}: theirs {theirs[key]}, ours {before[key]} before and {after[key]} after it")

    def test_evalscope_has_the_same_figures(self):
        prompts = [f"Question {i} of {i * i}: what comes next?" for i in range(32)]
        with tempfile.TemporaryDirectory() as folder:
            custom = pathlib.Path(folder) / "custom.jsonl"
            custom.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
            flags = ("--dataset-name", "custom", "--dataset-path", custom, "--custom-output-len", 16, "--ignore-eos",
                     "--num-prompts", len(prompts), "--max-concurrency", 8, "--ready-check-timeout-sec", 0)
            for backend in (COMPLETIONS, CHAT):
                with self.subTest(backend[1]):
                    before = ours(self.server, *flags, *backend).result
                    counters = Counters(self.server)
                    theirs = evalscopes(self.server, prompts, tokens=16, at_once=8, endpoint=backend[-1])
                    # It begins with a request that tells whether the server is there.
                    self.assertEqual(counters.since("generation_tokens_total"), theirs["total_output_tokens"] + 16)
                    after = ours(self.server, *flags, *backend).result
                    for key in ("num_prompts", "completed", "failed", "total_output_tokens"):
                        self.assertEqual((before[key], after[key]), (theirs[key], theirs[key]), key)
                    if backend is COMPLETIONS:  # of chat it counts what the server counts, the template with it
                        self.assertEqual(before["total_input_tokens"], theirs["total_input_tokens"])
                    self.check_times(theirs, before, after)

    @staticmethod
    def labels(out):
        table = out[out.index("============ Serving"):]
        lines = [re.sub(r" [\d.]+ *$", "", line).rstrip() for line in table.splitlines()]
        end = lines.index("=" * 50)
        return [line for line in lines[:end + 1] if line != "Failed requests:"]

    def test_every_dataset(self):
        with tempfile.TemporaryDirectory() as folder:
            sharegpt = pathlib.Path(folder) / "sharegpt.json"
            sharegpt.write_text(json.dumps([
                {"id": str(i), "conversations": [{"from": "human", "value": f"Tell me more about number {i}, please."},
                                                 {"from": "gpt", "value": "It is a number. " * (i + 1)}]}
                for i in range(4)]))
            custom = pathlib.Path(folder) / "custom.jsonl"
            custom.write_text("".join(json.dumps({"prompt": f"Question {i}?"}) + "\n" for i in range(3)))
            for flags, outputs in ((("--dataset-name", "sharegpt", "--dataset-path", sharegpt), None),
                                   (("--dataset-name", "custom", "--dataset-path", custom, "--output-len", 3), 24)):
                counters = Counters(self.server)
                run = ours(self.server, "--num-prompts", 8, "--ignore-eos", "--ready-check-timeout-sec", 0, *flags)
                self.assertEqual((run.code, run.result["completed"]), (0, 8), run.err)
                self.assertEqual(run.result["total_input_tokens"], counters.since("prompt_tokens_total"))
                self.assertEqual(run.result["total_output_tokens"], counters.since("generation_tokens_total"))
                if outputs:
                    self.assertEqual(run.result["total_output_tokens"], outputs)
            # The same prompts as vLLM's own tool takes from the file, so the same number of tokens.
            flags = ("--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--num-prompts", 4)
            self.assertEqual(ours(self.server, *flags).result["total_input_tokens"],
                             vllms(self.server, "scripted", *flags).result["total_input_tokens"])

    def test_repeated_prefixes_are_found_by_the_cache(self):
        counters = Counters(self.server)
        run = ours(self.server, "--dataset-name", "prefix_repetition", "--num-prompts", 12, "--max-concurrency", 1,
                   "--prefix-repetition-num-prefixes", 2, "--prefix-repetition-prefix-len", 96,
                   "--prefix-repetition-suffix-len", 16, "--prefix-repetition-output-len", 1, "--ignore-eos",
                   "--ready-check-timeout-sec", 0)
        self.assertEqual(run.result["completed"], 12, run.err)
        self.assertGreaterEqual(counters.since("prefix_cache_hits_total"), 10 * 96, "all but the first of each prefix")

    def test_requests_come_at_their_rate(self):
        run = ours(self.server, "--num-prompts", 20, "--input-len", 8, "--output-len", 1, "--request-rate", 20,
                   "--save-detailed", "--goodput", "e2el:60000", "--metadata", "site=here", "--label", "rated",
                   "--metric-percentiles", "50,99.9")
        result = run.result
        self.assertEqual(result["completed"], 20, run.err)
        self.assertTrue(1.0 <= result["duration"] <= 1.5, "the last of 20 requests at 20 a second is due after 1 s")
        self.assertAlmostEqual(result["request_goodput"], result["request_throughput"])
        self.assertEqual((result["site"], result["label"], result["request_rate"]), ("here", "rated", 20.0))
        self.assertEqual(len(result["ttfts"]), 20)
        self.assertEqual(result["errors"], [""] * 20)
        self.assertTrue(all(result["generated_texts"]))
        self.assertIn("p99.9_ttft_ms", result)
        self.assertRegex(next(iter(run.files)), r"^rated-20\.0qps-scripted-\d{8}-\d{6}\.json$")
        self.assertEqual(run.row("Request rate configured (RPS)"), 20.0)

    def test_results_can_be_added_to_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "all.json"
            for _ in range(2):
                ours(self.server, "--num-prompts", 2, "--input-len", 8, "--output-len", 1, "--append-result",
                     "--result-filename", path)
            self.assertEqual([json.loads(line)["completed"] for line in path.read_text().splitlines()], [2, 2])

    def test_a_request_that_fails_is_counted_and_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompts.jsonl"
            path.write_text(json.dumps({"prompt": "short"}) + "\n" + json.dumps({"prompt": "x y " * 600}) + "\n")
            run = ours(self.server, "--dataset-name", "custom", "--dataset-path", path, "--num-prompts", 2,
                       "--output-len", 2, "--disable-shuffle")
        self.assertEqual(run.code, 0, "one succeeded")
        self.assertEqual((run.result["completed"], run.result["failed"]), (1, 1))
        self.assertEqual(run.row("Failed requests"), 1)
        self.assertIn("1 failed: HTTP 400 Bad Request", run.err)
        self.assertIn("maximum context length", run.err)

    def test_what_cannot_be_measured_says_why(self):
        for flags, why in ((("--model", "nobody"), "The model `nobody` does not exist"),
                           (("--model", "nobody", "--ready-check-timeout-sec", 0), "none of 3 requests succeeded"),
                           (("--tokenizer", "/nowhere"), "'/nowhere' is no local path"),
                           (("--dataset-name", "sharegpt"), "--dataset-path is missing"),
                           (("--base-url", "http://127.0.0.1:1", "--ready-check-timeout-sec", 0), "127.0.0.1:1")):
            run = ours(self.server, "--num-prompts", 3, "--output-len", 1, *flags)
            self.assertNotEqual(run.code, 0, flags)
            self.assertIn(why, run.err)

    def test_a_server_that_is_not_there_yet_is_waited_for(self):
        run = ours(self.server, "--base-url", "http://127.0.0.1:1", "--ready-check-timeout-sec", 2)
        self.assertNotEqual(run.code, 0)
        self.assertIn("Waiting up to 2 s for the server", run.out)
        self.assertIn("127.0.0.1:1", run.err)


class Tls(unittest.TestCase):
    def test_an_https_server_is_checked_and_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench",
                            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                           check=True, capture_output=True)
            server = tandem.serve("S", *STUB, "--ssl-certfile", certificate, "--ssl-keyfile", key, model="scripted")
            self.addCleanup(server.stop)
            flags = ("--base-url", f"https://127.0.0.1:{server.port}", "--num-prompts", 4, "--input-len", 8,
                     "--output-len", 2, "--ignore-eos")
            run = ours(server, *flags, "--server-ca-certs", certificate)  # waits until the server is there
            self.assertEqual((run.code, run.result["completed"], run.result["total_output_tokens"]), (0, 4, 8), run.err)
            stranger = ours(server, *flags, "--ready-check-timeout-sec", 0)
            self.assertNotEqual(stranger.code, 0)
            self.assertIn("certificate", stranger.err)


class RealModel(unittest.TestCase):
    def test_counts_of_both_backends(self):
        server = tandem.serve("S").wait_ready()
        self.addCleanup(server.stop)
        for backend in (COMPLETIONS, CHAT):
            counters = Counters(server)
            # Neither model nor tokenizer: the server says what it serves, and where that is.
            run = Run([tandem.BINARY, "bench", "serve"], server,
                      ["--num-prompts", 6, "--random-input-len", 24, "--random-output-len", 8, *backend,
                       "--ready-check-timeout-sec", 0])
            self.assertEqual((run.code, run.result["completed"], run.result["failed"]), (0, 6, 0), run.err)
            self.assertEqual(run.result["total_output_tokens"], counters.since("generation_tokens_total"))
            self.assertEqual(run.result["tokenizer_id"], tandem.SMOLLM2)


class ThroughTheProxy(unittest.TestCase):
    def check(self, flow):
        pair = tandem.Pair(*map(str, STUB), model="scripted", flow=flow)
        self.addCleanup(pair.stop)
        for backend in (COMPLETIONS, CHAT):
            for run_it in (lambda *flags: ours(pair.proxy, "--model", "scripted", *flags),
                           lambda *flags: vllms(pair.proxy, "scripted", *flags)):
                counters = Counters(pair.decode)
                run = run_it("--num-prompts", 12, "--random-input-len", 40, "--random-output-len", 8, "--ignore-eos",
                             *backend)
                self.assertEqual((run.code, run.result["completed"]), (0, 12), run.err)
                self.assertEqual(run.result["total_output_tokens"], 12 * 8)
                self.assertEqual(counters.since("generation_tokens_total"), 13 * 8, "with the request before the run")
        counters = Counters(pair.decode)
        theirs = evalscopes(pair.proxy, [f"Question {i}?" for i in range(12)], tokens=8, at_once=12, endpoint=CHAT[-1])
        self.assertEqual((theirs["completed"], theirs["failed"], theirs["total_output_tokens"]), (12, 0, 12 * 8))
        self.assertEqual(counters.since("generation_tokens_total"), 13 * 8, "with the request before the run")

    def test_pull(self):
        self.check("pull")

    def test_layerwise(self):
        self.check("layerwise")


if __name__ == "__main__":
    unittest.main()

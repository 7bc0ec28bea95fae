#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make bench-tools`: three load generators ask one scripted worker (steps of 20 ms) the same 64 prompts, eight at a time:
`tandem bench serve`, vLLM 0.11.0's own `vllm bench serve` and guidellm 0.3.1 (tools/fetch_load_tools.sh gets them).

Requests and tokens must be equal, and equal to what the server counted; medians may differ by 15 %. guidellm says
"inter token latency" for the mean gap of a request, which is the others' TPOT, and has no median of single gaps.
Exit code 1 if they do not agree. usage: tools.py [--build build/release]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
TOKENIZER = ROOT / ".cache" / "tokenizers" / "qwen3"
GUIDELLM = ROOT / ".cache" / "load_tools" / "guidellm-venv" / "bin" / "guidellm"
PROMPTS, AT_ONCE, TOKENS, STEP_S = 64, 8, 32, 0.02
TOLERANCE = 0.15
WORDS = "alpha river stone cloud seven light garden paper morning winter".split()


def prompt(i):
    return f"Question {i}: " + " ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(1, 40))


def flags_of_both(folder):
    data = folder / "sharegpt.json"
    data.write_text(json.dumps([{"conversations": [{"value": prompt(i)}, {"value": "yes"}]} for i in range(PROMPTS)]))
    return ["--tokenizer", TOKENIZER, "--model", "scripted", "--dataset-name", "sharegpt", "--dataset-path", data,
            "--sharegpt-output-len", TOKENS, "--num-prompts", PROMPTS, "--max-concurrency", AT_ONCE, "--ignore-eos"]


def of_vllm(run):
    if run.code != 0:
        sys.exit(run.err)
    result = run.result
    return {"requests": result["completed"], "prompt tokens": result["total_input_tokens"],
            "output tokens": result["total_output_tokens"], "TTFT, ms": result["median_ttft_ms"],
            "TPOT, ms": result["median_tpot_ms"], "E2EL, ms": result["median_e2el_ms"],
            "output tokens/s": result["output_throughput"]}


def guidellm(server, folder):
    data, out = folder / "prompts.jsonl", folder / "guidellm.json"
    data.write_text("".join(json.dumps({"prompt": prompt(i)}) + "\n" for i in range(PROMPTS)))
    subprocess.run([str(GUIDELLM), "benchmark", "run", "--target", f"http://127.0.0.1:{server.port}", "--model", "scripted",
                    "--processor", str(TOKENIZER), "--data", str(data), "--rate-type", "concurrent", "--rate", str(AT_ONCE),
                    "--max-requests", str(PROMPTS), "--disable-progress", "--disable-console-outputs",
                    "--output-path", str(out), "--backend-args", json.dumps({"max_output_tokens": TOKENS})],
                   check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")})
    benchmark = json.loads(out.read_text())["benchmarks"][0]
    metrics = {name: value["successful"] for name, value in benchmark["metrics"].items()}
    requests = benchmark["requests"]["successful"]
    duration = max(r["end_time"] for r in requests) - min(r["start_time"] for r in requests)
    return {"requests": len(requests), "prompt tokens": int(metrics["prompt_token_count"]["total_sum"]),
            "output tokens": int(metrics["output_token_count"]["total_sum"]),
            "TTFT, ms": metrics["time_to_first_token_ms"]["median"],
            "TPOT, ms": metrics["inter_token_latency_ms"]["median"],
            "E2EL, ms": 1000 * metrics["request_latency"]["median"],
            "output tokens/s": metrics["output_token_count"]["total_sum"] / duration}


def disagreements(found):
    first = found["tandem"]
    for name, figures in found.items():
        for key, value in figures.items():
            exact = isinstance(value, int)
            if value != first[key] if exact else abs(value / first[key] - 1) > TOLERANCE:
                yield f"{name}: {key} is {value}, tandem bench serve has {first[key]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    os.environ["TANDEM_BINARY"] = str(parser.parse_args().build.resolve() / "tandem")
    import tandem_processes as tandem
    import test_bench
    if not GUIDELLM.exists():
        sys.exit("bench/api/tools.py: guidellm is missing: tools/fetch_load_tools.sh guidellm gets it")
    server = tandem.serve("scripted", "--load-format", "stub", "--tokenizer", TOKENIZER, "--max-model-len", 2048,
                          "--no-enable-prefix-caching", "--hf-overrides",
                          json.dumps({"seconds_per_step": STEP_S, "sampled_ids": 90}), model="scripted").wait_ready()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flags = flags_of_both(folder)
        found, counted = {}, {}
        for tool, ask in (("tandem", lambda: of_vllm(test_bench.ours(server, *flags))),
                          ("vllm", lambda: of_vllm(test_bench.theirs(server, "scripted", *flags))),
                          ("guidellm", lambda: guidellm(server, folder))):
            counters = test_bench.Counters(server)
            found[tool] = ask()
            counted[tool] = counters.since("generation_tokens_total") - found[tool]["output tokens"]
    server.stop()
    print(f"{'':18}" + "".join(f"{tool:>14}" for tool in found))
    for key in found["tandem"]:
        print(f"{key:18}" + "".join(f"{figures[key]:14.1f}" if isinstance(figures[key], float) else f"{figures[key]:14}"
                                    for figures in found.values()))
    print(f"{'tokens before it':18}" + "".join(f"{int(extra):14}" for extra in counted.values()))
    problems = list(disagreements(found))
    print("\n".join(problems) if problems else "they agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

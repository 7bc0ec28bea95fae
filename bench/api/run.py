#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the API and the text around a model cost: HTTP, parsing, chat template, tokenising, engine, detokenising, JSON, SSE.

The server is `tandem serve --load-format stub` without scripted time and with the tokenizer of Qwen3 (151,643 tokens);
next to it a server that does nothing but HTTP, asked the same. Each has one CPU for itself, whoever asks has another.

  overhead   one request at a time: median latency of each way to ask, and what a token and a prompt token add; and the
             server's CPU time by thread. "api" is the thread of HTTP, text and JSON.
  streams    steps of 20 ms, so 50 tokens/s a stream: streams are added until the 99th percentile of the gap between two
             tokens is over 30 ms.

Wants two idle CPUs. usage: run.py [--build build/release] [--only overhead|streams] [--rounds 200]
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
STEP_MS = 20
WORST_GAP_MS = 1.5 * STEP_MS
TOKENS_OF_A_STREAM = 100


def pinned(cpu, command):
    return ["taskset", "-c", str(cpu), *map(str, command)]


class Bare:
    """The server that does nothing but HTTP."""

    def __init__(self, build, period_ms):
        program = next((build / "bench").rglob("api_overhead_bench"))
        self.process = subprocess.Popen(pinned(CPUS[0], [program, "bare", period_ms]), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)


class Stub:
    def __init__(self, seconds_per_step):
        import tandem_processes as tandem
        flags = ["--load-format", "stub", "--tokenizer", TOKENIZER, "--max-model-len", 4096, "--max-num-seqs", 4096,
                 "--max-num-batched-tokens", 8192, "--num-gpu-blocks-override", 60000, "--disable-log-requests",
                 "--hf-overrides", json.dumps({"seconds_per_step": seconds_per_step, "sampled_ids": 90})]
        self.server = tandem.serve("stub", *flags, model="m")
        self.process = self.server.process
        os.sched_setaffinity(self.process.pid, {CPUS[0]})  # before it makes threads
        self.server.wait_ready()
        self.port = self.server.port

    def stop(self):
        self.server.stop()


def cpu_seconds(process):
    """{thread id: seconds}"""
    used = {}
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        fields = (task / "schedstat").read_text().split()
        used[int(task.name)] = int(fields[0]) / 1e9
    return used


def overhead(build, rounds):
    program = next((build / "bench").rglob("api_overhead_bench"))
    medians, cpu = {}, {}
    for name, start in (("tandem", lambda: Stub(0.0)), ("bare", lambda: Bare(build, 0))):
        server = start()
        try:
            subprocess.run(pinned(CPUS[1], [program, "ask", server.port, 10]), check=True, stdout=subprocess.DEVNULL)
            before = cpu_seconds(server.process)
            lines = subprocess.run(pinned(CPUS[1], [program, "ask", server.port, rounds]), check=True,
                                   capture_output=True, text=True).stdout
            after = cpu_seconds(server.process)
            api = server.process.pid
            cpu[name] = {"api": after[api] - before[api],
                         "other": sum(after[t] - before.get(t, 0) for t in after if t != api)}
        finally:
            server.stop()
        for line in lines.splitlines():
            way = json.loads(line)
            key = ("chat" if way["chat"] else "completions", "stream" if way["stream"] else "whole")
            medians.setdefault(key, {})[name, way["prompt_words"], way["tokens"]] = way["p50_us"]
    print(f"{'':24}{'a request, us':>26}{'a token, us':>22}{'a prompt token, us':>22}")
    print(f"{'':24}{'tandem':>13}{'bare':>13}{'tandem':>11}{'bare':>11}{'tandem':>22}")
    rows = []
    for (endpoint, form), found in medians.items():
        def of(server, words, tokens):
            return found[server, words, tokens]
        row = {"endpoint": endpoint, "form": form}
        for server in ("tandem", "bare"):
            row[f"{server}_request_us"] = of(server, 64, 1)
            row[f"{server}_token_us"] = (of(server, 64, 129) - of(server, 64, 1)) / 128
            row[f"{server}_prompt_token_us"] = (of(server, 1088, 1) - of(server, 64, 1)) / 1024
        rows.append(row)
        print(f"{endpoint + ', ' + form:24}{row['tandem_request_us']:13.0f}{row['bare_request_us']:13.0f}"
              f"{row['tandem_token_us']:11.1f}{row['bare_token_us']:11.1f}{row['tandem_prompt_token_us']:22.2f}")
    total = sum(cpu["tandem"].values())
    print(f"CPU of the server: {total / rounds * 1e3:.2f} ms a round of {len(medians) * 3} requests, "
          f"{cpu['tandem']['api'] / total:.0%} of it the thread of HTTP, text and JSON; "
          f"bare: {sum(cpu['bare'].values()) / rounds * 1e3:.2f} ms")
    return {"ways": rows, "cpu_seconds": cpu, "rounds": rounds}


def load(build, port, streams, folder):
    """Figures of one run of `streams` streams that all begin at once."""
    path = folder / "result.json"
    done = subprocess.run(
        pinned(CPUS[1], [build / "tandem", "bench", "serve", "--port", port, "--model", "m", "--tokenizer", TOKENIZER,
                         "--num-prompts", streams, "--random-input-len", 8, "--random-output-len", TOKENS_OF_A_STREAM,
                         "--ignore-eos", "--ready-check-timeout-sec", 0, "--metric-percentiles", "50,99", "--disable-tqdm",
                         "--save-result", "--result-filename", path]), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"bench/api/run.py: {done.stderr}")
    return json.loads(path.read_text())


def streams(build, counts):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, start in (("tandem", lambda: Stub(STEP_MS / 1000)), ("bare", lambda: Bare(build, STEP_MS))):
            server = start()
            try:
                for count in counts:
                    before = cpu_seconds(server.process)
                    own = os.times()
                    result = load(build, server.port, count, pathlib.Path(folder))
                    after, now = cpu_seconds(server.process), os.times()
                    api = server.process.pid
                    tokens = result["total_output_tokens"]
                    row = {"server": name, "streams": count, "failed": result["failed"],
                           "median_gap_ms": result["p50_itl_ms"], "p99_gap_ms": result["p99_itl_ms"],
                           "tokens_per_s": result["output_throughput"],
                           "api_cpu_us_per_token": (after[api] - before.get(api, 0)) / tokens * 1e6,
                           "cpu_us_per_token": sum(after[t] - before.get(t, 0) for t in after) / tokens * 1e6,
                           "generator_cpu_us_per_token": (now.children_user + now.children_system - own.children_user
                                                          - own.children_system) / tokens * 1e6}
                    rows.append(row)
                    print(f"{name:8}{count:6} streams  gap {row['median_gap_ms']:6.1f} ms, p99 {row['p99_gap_ms']:6.1f} ms  "
                          f"{row['tokens_per_s']:9.0f} tokens/s  CPU a token: server {row['cpu_us_per_token']:5.1f} us, of "
                          f"it api {row['api_cpu_us_per_token']:5.1f}; generator {row['generator_cpu_us_per_token']:5.1f}",
                          flush=True)
                    if row["p99_gap_ms"] > WORST_GAP_MS:
                        break
            finally:
                server.stop()
    return rows


def main():
    global CPUS
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--only", choices=["overhead", "streams"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 200, 400, 600, 800, 1000, 1200, 1600, 2000, 2400])
    options = parser.parse_args()
    options.build = options.build.resolve()
    os.environ["TANDEM_BINARY"] = str(options.build / "tandem")
    CPUS = sorted(os.sched_getaffinity(0))
    if len(CPUS) < 2:
        sys.exit("bench/api/run.py: two CPUs are needed, one for the server and one for whoever asks")
    results = {}
    if options.only != "streams":
        results["overhead"] = overhead(options.build, options.rounds)
    if options.only != "overhead":
        results["streams"] = streams(options.build, options.streams)
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "api.json").write_text(json.dumps(results, indent=1))


CPUS = []
if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode speed of our model runner, next to the machine's limits and to llama.cpp, in one run.

Both sides read the same GGUF file (Q8_0, generated weights), run the same number of threads, stay loaded, and are asked
in turns, so that a disturbance of the machine hits all of them. What is compared are medians. See bench/README.md.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEER_PACKAGES = ["node-llama-cpp@3.21.1", "@node-llama-cpp/linux-x64@3.21.1"]
SLOTS = 8
ANSWER_DEADLINE = 300  # seconds; a peer that does not answer in it is ended

# What a prompt token costs in the linear layers, and what a token of KV takes: hidden, intermediate, layers, heads, KV
# heads, head dimension.
SHAPES = {
    "smollm2-135m": (576, 1536, 30, 9, 3, 64),
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128),
}


def linear_parameters(shape):
    hidden, inter, layers, heads, kv_heads, dim = SHAPES[shape]
    return layers * (hidden * dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inter)


def kv_bytes_per_token(shape):
    _, _, layers, _, kv_heads, dim = SHAPES[shape]
    return 2 * layers * kv_heads * dim * 2


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Process:
    """One side: a process that answers each request line by one JSON line."""

    def __init__(self, name, command):
        self.name = name
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.ready = self.read()

    def read(self):
        import selectors
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_DEADLINE):
                self.stop()
                raise RuntimeError(f"{self.name} did not answer in {ANSWER_DEADLINE} s")
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.child.wait()}")
        return json.loads(line)

    def ask(self, request):
        self.child.stdin.write(request + "\n")
        self.child.stdin.flush()
        return self.read()

    def stop(self):
        self.child.kill()
        self.child.wait()


def peer_folder():
    """Installs llama.cpp's prebuilt package if it is not there; None (and why) if it cannot be had."""
    folder = ROOT / ".cache" / "llama-cpp"
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None, "node and npm are not installed (Debian: nodejs npm)"
    if not (folder / "node_modules/@node-llama-cpp/linux-x64/package.json").exists():
        say("installing llama.cpp (npm node-llama-cpp 3.21.1, prebuilt)")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"name": "bench-peer", "private": true}\n')
        done = subprocess.run(["npm", "install", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund",
                               *PEER_PACKAGES], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            return None, "npm install failed: " + done.stderr.strip().splitlines()[-1]
    return folder, None


def model_file(shape, build):
    path = ROOT / "models" / "bench" / f"{shape}-q8_0.gguf"
    if not path.exists():
        say(f"writing {path.relative_to(ROOT)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name("partial-" + path.name)
        subprocess.run([build / "tools/make_model/tandem-make-model", "--shape", shape, "--type", "q8_0", "--output",
                        partial], check=True, stdout=subprocess.DEVNULL)
        partial.rename(path)
    return path


def start_sides(shape, arguments, build, peer):
    path = model_file(shape, build)
    context = arguments.prompt + arguments.decode
    sides = []
    try:
        for compute in arguments.compute.split(","):
            command = [build / "bench/serving/tandem-bench-model", "--model", path, "--compute", compute, "--threads",
                       str(arguments.threads), "--context", str(context)]
            sides.append(Process(f"tandem {compute}", command))
        if peer:
            # llama.cpp shares one pool of cells between all sequences.
            command = ["node", ROOT / "bench/serving/llama_peer.mjs", peer, path, str(arguments.threads),
                       str(SLOTS * context)]
            sides.append(Process("llama.cpp q8_0", command))
    except Exception:
        stop_sides(sides)
        raise
    return sides


def stop_sides(sides):
    for side in sides:
        side.stop()


def in_turns(sides, repeats, request_of, results, key, deadline):
    """Asks each side up to `repeats` times, until the deadline but at least once; the one that starts changes every time.
    Returns how often."""
    for repeat in range(repeats):
        if repeat > 0 and time.monotonic() > deadline:
            say(f"{key}: {repeat} of {repeats} repetitions, the time is up (--budget)")
            return repeat
        turn = repeat % len(sides)
        for side in sides[turn:] + sides[:turn]:
            time.sleep(0.02)  # threads of the side before, which still spin, go to sleep
            answer = side.ask(request_of(repeat))
            results[side.name].setdefault(key, []).append(answer)
    return repeats


def measure(shape, arguments, build, peer):
    say(f"{shape}: loading")
    budget = arguments.budget / len(arguments.shapes.split(","))
    began = time.monotonic()
    sides = start_sides(shape, arguments, build, peer)
    try:
        results = {side.name: {"ready": side.ready} for side in sides}
        for side in sides:  # page in weights and buffers; not counted
            side.ask(f"prefill 0 {arguments.prompt}")
            side.ask(f"decode 1 {arguments.prompt} 4")
        say(f"{shape}: prefill of {arguments.prompt} tokens, {SLOTS} times")
        filled = in_turns(sides, SLOTS, lambda i: f"prefill {i} {arguments.prompt}", results, "prefill",
                          began + 0.6 * budget)
        for batch, share in ((1, 0.75), (SLOTS, 0.95)):
            if batch > filled:
                say(f"{shape}: no decode of {batch} sequences, only {filled} have a prompt")
                continue
            say(f"{shape}: decode of {arguments.decode} tokens, batch {batch}, {arguments.repeats} times")
            request = f"decode {batch} {arguments.prompt} {arguments.decode}"
            in_turns(sides, arguments.repeats, lambda _: request, results, f"decode {batch}", began + share * budget)
        return results
    finally:
        stop_sides(sides)


def machine_limits(build, threads):
    return json.loads(subprocess.run([build / "bench/kernels/tandem-limits", str(threads)], check=True,
                                     capture_output=True, text=True).stdout)


def summarise(shape, results, arguments, limits):
    """Rows: tokens/s of each side, their ratio to llama.cpp, and the share of the machine's limit."""
    rows = []
    for key in ("prefill", "decode 1", f"decode {SLOTS}"):
        if any(key not in result for result in results.values()):
            continue
        batch = 1 if key == "prefill" else int(key.split()[1])
        tokens = arguments.prompt if key == "prefill" else batch * arguments.decode
        row = {"shape": shape, "what": f"{key}", "sides": {}}
        for name, result in results.items():
            seconds = [answer["seconds"] for answer in result[key]]
            median = statistics.median(seconds)
            entry = {"tokens_per_second": tokens / median, "best": tokens / min(seconds), "worst": tokens / max(seconds),
                     "cpu_seconds": statistics.median(answer["cpu_seconds"] for answer in result[key])}
            if key == "prefill":
                operations = 2 * linear_parameters(shape) * tokens
                peak = limits["bf16_gflops"] if "bfloat16" in name else limits["int8_gops"]
                entry["share_of_limit"] = operations / median / 1e9 / peak
            else:
                step = median / arguments.decode
                read = result["ready"]["weight_bytes"] + batch * arguments.prompt * kv_bytes_per_token(shape)
                entry["share_of_limit"] = read / step / 1e9 / limits["read_gbps"]
            row["sides"][name] = entry
        peer = row["sides"].get("llama.cpp q8_0")
        if peer:
            for name, entry in row["sides"].items():
                entry["ratio_to_llama_cpp"] = entry["tokens_per_second"] / peer["tokens_per_second"]
                entry["cpu_ratio_to_llama_cpp"] = peer["cpu_seconds"] / entry["cpu_seconds"]
        rows.append(row)
    return rows


def print_table(rows, limits, arguments):
    print(f"\nlimits of this machine, {limits['threads']} threads: int8 {limits['int8_gops']:.0f} GOP/s, BF16 "
          f"{limits['bf16_gflops']:.0f} GFLOP/s, memory reads {limits['read_gbps']:.1f} GB/s")
    print(f"tokens/s (medians), prompt {arguments.prompt}, decode {arguments.decode}; in brackets: share of the limit "
          "(prefill: arithmetic of the\nlinear layers against the peak of the type; decode: weights and KV read against "
          "memory speed), and ratio to llama.cpp\n")
    names = list(rows[0]["sides"])
    print(f"{'':14}{'':10}" + "".join(f"{name:>28}" for name in names))
    for row in rows:
        cells = []
        for name in names:
            entry = row["sides"][name]
            ratio = entry.get("ratio_to_llama_cpp")
            extra = f"{100 * entry['share_of_limit']:.0f} %"
            if ratio is not None and not name.startswith("llama"):
                extra += f", x{ratio:.2f}"
            cells.append(f"{entry['tokens_per_second']:>13.1f} ({extra})".rjust(28))
        print(f"{row['shape']:14}{row['what']:10}" + "".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="build folder with the benchmarks (preset bench)")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--compute", default="w8a8,bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="of each decode; prefill runs eight times")
    parser.add_argument("--budget", type=float, default=300,
                        help="seconds for all shapes; on a slow or busy machine there are then fewer repetitions")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    parser.add_argument("--json", default="build/bench/serving.json")
    arguments = parser.parse_args()
    for shape in arguments.shapes.split(","):
        if shape not in SHAPES:
            parser.error(f"--shapes: there is no '{shape}'; there are {', '.join(SHAPES)}")
    build = ROOT / arguments.build
    for program in ("bench/serving/tandem-bench-model", "bench/kernels/tandem-limits",
                    "tools/make_model/tandem-make-model"):
        if not (build / program).exists():
            sys.exit(f"bench: {build / program} is not there; build with: cmake --preset bench && cmake --build --preset bench")
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"the machine is busy (load {load:.1f}): believe the ratios at most")
    peer, why = (None, "--no-peer") if arguments.no_peer else peer_folder()
    if peer is None:
        say(f"without llama.cpp: {why}")

    began = time.monotonic()
    say("machine limits")
    measured = [machine_limits(build, arguments.threads)]
    raw = {shape: measure(shape, arguments, build, peer) for shape in arguments.shapes.split(",")}
    measured.append(machine_limits(build, arguments.threads))
    # Other guests of the host, and cores that share their units, make limits lower for minutes: the higher one counts.
    limits = {name: max(each["limits"][-1][name] for each in measured) for name in measured[0]["limits"][-1]}
    rows = [row for shape in raw for row in summarise(shape, raw[shape], arguments, limits)]
    print_table(rows, limits, arguments)
    output = ROOT / arguments.json
    output.parent.mkdir(parents=True, exist_ok=True)
    report = {"limits": measured, "load_average_at_start": load, "arguments": vars(arguments), "rows": rows, "raw": raw,
              "peer": None if peer is None else PEER_PACKAGES, "seconds": time.monotonic() - began}
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{output.relative_to(ROOT)} has every measurement; {report['seconds']:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench: {error}")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is left to wait for KV once the prefill is over: pull next to layerwise push, over a link of 1 Gbit/s and over
shared memory.

    python3 bench/transfer/push_over_link.py --build build/release      # root: it makes two network namespaces

Prefiller and decoder run in a namespace each, joined by a veth pair whose both ends are limited by `tc tbf`; proxy and
client are with the decoder. Every prompt is new. The wait is TTFT less what the prefiller needed for queue, template and
prefill, and less the decoder's first step: what the two instances report in X-Tandem-Timing. Rounds take turns; medians.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
SPACES = ("tandem-bench-p", "tandem-bench-d")
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Link:
    """Two namespaces and a limited link between them; removed on exit."""

    def __init__(self, rate):
        self.rate = rate

    def __enter__(self):
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)
            run("ip", "netns", "add", space)
        run("ip", "link", "add", "tdbp", "netns", SPACES[0], "type", "veth", "peer", "name", "tdbd", "netns", SPACES[1])
        for space, device, address in zip(SPACES, ("tdbp", "tdbd"), ADDRESSES):
            inside = ("ip", "-n", space)
            run(*inside, "addr", "add", f"{address}/24", "dev", device)
            run(*inside, "link", "set", device, "up")
            run(*inside, "link", "set", "lo", "up")
            if self.rate:
                run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, "burst", "256kb",
                    "latency", "100ms")
        return self

    def __exit__(self, *_):
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)


class Instance:
    def __init__(self, binary, space, port, *arguments, health, log):
        self.space, self.port, self.health = space, port, health
        self.log = open(log, "wb")
        self.process = subprocess.Popen(["ip", "netns", "exec", space, str(binary), *map(str, arguments)],
                                        stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, "VLLM_HOST_IP": ADDRESSES[SPACES.index(space)]})

    def wait(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"an instance ended; see {self.log.name}")
            address = ADDRESSES[SPACES.index(self.space)]
            probe = subprocess.run(["ip", "netns", "exec", self.space, "curl", "-sf", "-m", "2", "-o", "/dev/null",
                                    f"http://{address}:{self.port}{self.health}"], check=False)
            if probe.returncode == 0:
                return
            time.sleep(0.2)
        raise SystemExit(f"not ready within two minutes; see {self.log.name}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def ask(port, prompt):
    """(TTFT, parts) of one request, from inside the decoder's namespace."""
    script = r"""
import http.client, json, sys, time
port, body = int(sys.argv[1]), sys.stdin.read()
connection = http.client.HTTPConnection(sys.argv[2], port, timeout=120)
started = time.monotonic()
connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "X-Tandem-Timing": "1"})
response = connection.getresponse()
assert response.status == 200, (response.status, response.read())
while not response.readline().startswith(b"data: "):
    pass
print(json.dumps([time.monotonic() - started, response.getheader("X-Tandem-Timing", "")]))
response.read()
"""
    body = json.dumps({"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True})
    out = subprocess.run(["ip", "netns", "exec", SPACES[1], sys.executable, "-c", script, str(port), ADDRESSES[1]],
                         input=body, capture_output=True, text=True, check=True).stdout
    ttft, header = json.loads(out)
    parts = {name: float(value) for name, value in (part.split("=") for part in header.split(";") if part)}
    return ttft, parts


def wait_after_prefill(ttft, parts):
    at_prefiller = sum(value for name, value in parts.items()
                       if name in ("prefill.queue", "prefill.template", "prefill.prefill", "prefill.first_step"))
    return ttft - at_prefiller - parts.get("decode.first_step", 0.0) - parts.get("decode.template", 0.0)


def measure(arguments, connector, rate, transport):
    binary = pathlib.Path(arguments.build).resolve() / "tandem"
    logs = ROOT / "build" / "bench"
    logs.mkdir(parents=True, exist_ok=True)
    common = ["--threads", "1", "--max-model-len", "4096", "--quantization", "w8a8", "--max-num-batched-tokens",
              arguments.chunk, "--kv-cache-memory-bytes", "512M", "--kv-transport", transport]
    # Shared memory is for one host, and that means one network namespace too: its sockets are found there.
    space_of_p, address_of_p = (SPACES[0], ADDRESSES[0]) if rate else (SPACES[1], ADDRESSES[1])
    started = []
    with Link(rate):
        try:
            for space, address, role, port in ((space_of_p, address_of_p, "kv_producer", 8000),
                                               (SPACES[1], ADDRESSES[1], "kv_consumer", 8001)):
                config = {"kv_connector": CONNECTORS[connector], "kv_role": role, "engine_id": role,
                          "kv_port": str(20000 + port)}
                started.append(Instance(binary, space, port, "serve", MODEL, "--host", address, "--port", port, *common,
                                        "--kv-transfer-config", json.dumps(config), health="/health",
                                        log=logs / f"push_over_link-{role}.log"))
            for instance in started:
                instance.wait()
            started.append(Instance(
                binary, SPACES[1], 9000, "proxy", "--host", ADDRESSES[1], "--port", "9000", "--prefiller-hosts",
                address_of_p, "--prefiller-ports", "8000", "--decoder-hosts", ADDRESSES[1], "--decoder-ports", "8001",
                "--connector", connector, health="/healthcheck", log=logs / "push_over_link-proxy.log"))
            started[-1].wait()
            rng = random.Random(1)
            results = []
            for number in range(arguments.rounds + 1):
                prompt = [rng.randrange(1000, 40000) for _ in range(arguments.prompt)]
                ttft, parts = ask(9000, prompt)
                if number > 0:  # the first one meets cold connections
                    results.append((ttft, wait_after_prefill(ttft, parts), parts))
            return results
        finally:
            for instance in reversed(started):
                instance.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--chunk", type=int, default=512, help="--max-num-batched-tokens of both instances")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--json", default=str(ROOT / "build/bench/push_over_link.json"))
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("push_over_link: needs root for network namespaces")
    report = {}
    print(f"{arguments.prompt} tokens in chunks of {arguments.chunk}, medians of {arguments.rounds}")
    for where, rate, transport in ((f"TCP at {arguments.rate}", arguments.rate, "tcp"), ("shared memory", "", "shm")):
        for connector in CONNECTORS:
            results = measure(arguments, connector, rate, transport)
            ttft = statistics.median(result[0] for result in results)
            wait = statistics.median(result[1] for result in results)
            report[f"{where}, {connector}"] = {"ttft_s": ttft, "wait_s": wait, "rounds": results}
            print(f"{where:16} {connector:10} TTFT {ttft:6.3f} s, of it waiting for KV after prefill {wait * 1e3:7.1f} ms "
                  f"({100 * wait / ttft:4.1f} %)", flush=True)
    pathlib.Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

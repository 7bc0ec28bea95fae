#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps per second of an instance with experts: one host next to two, and how they fall with ranks and experts.

    python3 bench/comm/steps.py --build build/release

A Qwen3-MoE with generated weights, --enable-expert-parallel, one request on each data-parallel rank, one thread a
process. All ranks step together, so a step is a token of each request. On one machine two hosts share its CPUs: the
column "two hosts" has what the rounds cost, not what a second machine brings.
"""
import argparse
import contextlib
import http.client
import json
import pathlib
import subprocess
import tempfile
import threading
import time

from namespaces import Hosts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKENS = 200
PORT = 8004


def config(num_experts):
    return {"model_type": "qwen3_moe", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512,
            "moe_intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
            "num_experts": num_experts, "num_experts_per_tok": 4, "norm_topk_prob": True, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "max_position_embeddings": 1024}


def make_model(build, folder, num_experts):
    path = pathlib.Path(folder) / f"experts-{num_experts}"
    written = pathlib.Path(folder) / "config.json"
    written.write_text(json.dumps(config(num_experts)))
    subprocess.run([str(build / "tools/make_model/tandem-make-model"), "--config", str(written), "--output", str(path)],
                   check=True, stdout=subprocess.DEVNULL)
    return path


class Instance:
    """Ranks spread evenly over hosts."""

    def __init__(self, build, hosts, num_hosts, model, num_ranks):
        self._address = hosts.addresses[0]
        local = num_ranks // num_hosts
        self._log = tempfile.TemporaryFile()
        self._processes = []
        for host in range(num_hosts):
            place = ["--headless", "--data-parallel-start-rank", host * local] if host else []
            self._processes.append(subprocess.Popen(hosts.command(
                host, build / "tandem", "serve", model, "--port", PORT, "--threads", 1, "--enable-expert-parallel",
                "--data-parallel-size", num_ranks, "--data-parallel-size-local", local, *place,
                "--data-parallel-address", hosts.addresses[0], "--num-gpu-blocks-override", 64,
                "--max-num-seqs", 4, "--max-model-len", 1024), stdout=self._log, stderr=self._log))
        deadline = time.monotonic() + 60
        while not self._healthy():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                self._log.seek(0)
                raise SystemExit(self._log.read().decode(errors="replace"))
            time.sleep(0.1)
        self._num_ranks = num_ranks

    def _healthy(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self._address, PORT, timeout=2)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def _ask(self, rank):
        connection = http.client.HTTPConnection(self._address, PORT, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": [rank + 1, 7, 9], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}),
            {"Content-Type": "application/json", "X-data-parallel-rank": str(rank)})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise SystemExit(f"status {response.status}: {body!r}")

    def steps_per_second(self, repetitions=3):
        best = float("inf")
        for _ in range(repetitions):
            threads = [threading.Thread(target=self._ask, args=(rank,)) for rank in range(self._num_ranks)]
            begun = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            best = min(best, time.monotonic() - begun)
        return TOKENS / best

    def stop(self):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)
        self._log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    arguments = parser.parse_args()
    print(f"{'experts':>8} {'ranks':>6} {'one host':>12} {'two hosts':>12} {'ratio':>7}   steps/s")
    with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
        models = {count: make_model(arguments.build, folder, count) for count in (8, 32, 128)}
        for num_experts, num_ranks in ((32, 2), (32, 4), (32, 8), (32, 16), (8, 2), (128, 2)):
            rates = []
            for num_hosts in (1, 2):
                instance = Instance(arguments.build, hosts, num_hosts, models[num_experts], num_ranks)
                rates.append(instance.steps_per_second())
                instance.stop()
            print(f"{num_experts:>8} {num_ranks:>6} {rates[0]:>12.1f} {rates[1]:>12.1f} {rates[1] / rates[0]:>7.2f}",
                  flush=True)


if __name__ == "__main__":
    main()

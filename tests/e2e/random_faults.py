#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests under faults at random: no wrong token, no hang, no leak, and every request that is lost is an error.

    python3 tests/e2e/random_faults.py --requests 1000 --connector layerwise --seed 7

Two prefillers, two decoders and a proxy serve a generated model while one instance after the other is killed and started
again, stopped and continued, and clients leave at random moments. Each answer is compared with a colocated instance's.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import random
import signal
import socket
import sys
import tempfile
import threading
import time

import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import parity_table
import tandem_processes as tandem

LEASE_TERM_S = 2
REQUEST_DEADLINE_S = 60
MAX_TOKENS = 500  # long enough for a fault to come in between
FLAGS = ["--max-model-len", "1024", "--max-num-batched-tokens", "32", "--block-size", "16", "--kv-lease-term",
         f"{LEASE_TERM_S}s"]
SIDES = {"P1": ("kv_producer", "1M", 1), "P2": ("kv_producer", "1M", 2), "D1": ("kv_consumer", "4M", 3),
         "D2": ("kv_consumer", "4M", 1)}  # role, KV memory, tensor-parallel size


class Cluster:
    def __init__(self, stack, model, connector, policy):
        self.model, self.connector, self.policy = model, connector, policy
        self.stack = stack
        self.ports = {name: (tandem.free_port(), tandem.free_port(tp)) for name, (_, _, tp) in SIDES.items()}
        self.instances = {}
        for name in SIDES:
            self.start(name)
        stack.callback(lambda: [instance.stop() for instance in self.instances.values()])
        for instance in self.instances.values():
            instance.wait_ready()
        flow = "layerwise" if connector == "layerwise" else "pull"
        self.proxy = tandem.proxy([self.instances["P1"], self.instances["P2"]],
                                  [self.instances["D1"], self.instances["D2"]], "--connector", flow)
        stack.callback(self.proxy.stop)
        self.proxy.wait_ready()

    def start(self, name):
        role, memory, tp = SIDES[name]
        port, kv_port = self.ports[name]
        self.instances[name] = tandem.serve(
            name, *FLAGS, "--kv-cache-memory-bytes", memory, "--tensor-parallel-size", tp, model=self.model, role=role,
            port=port, kv_port=kv_port,
            transfer={"kv_connector": parity_table.CONNECTORS[self.connector], "kv_load_failure_policy": self.policy})


class FaultMaker(threading.Thread):
    """One fault after the other, each mended before the next, until stop()."""

    def __init__(self, cluster, rng):
        super().__init__(daemon=True)
        self.cluster, self.rng = cluster, rng
        self.counts = collections.Counter()
        self.ended = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.ended.wait(self.rng.uniform(0.02, 0.2)):
                name = self.rng.choice(list(SIDES))
                kind = self.rng.choice(("kill", "stop", "pause"))
                self.counts[f"{kind} {name[0]}"] += 1
                getattr(self, kind)(name)
        except Exception as error:  # noqa: BLE001: told to the main thread
            self.error = error

    def kill(self, name):
        self.cluster.instances[name].kill()
        time.sleep(self.rng.uniform(0, 0.5))
        self.cluster.start(name)
        self.cluster.instances[name].wait_ready()

    def stop(self, name):
        """Longer than a lease's term: everybody else must have given it up."""
        self.pause(name, LEASE_TERM_S * 1.5)

    def pause(self, name, seconds=0.3):
        process = self.cluster.instances[name].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def finish(self):
        self.ended.set()
        self.join(60)
        if self.is_alive():
            raise AssertionError("the fault maker hangs")
        if self.error:
            raise self.error


def prompt_of(number):
    rng = random.Random(number)
    shared = random.Random(number % 5)  # some share a prefix
    return [shared.randrange(1, 250) for _ in range(48)] + [rng.randrange(1, 250) for _ in range(rng.randrange(1, 250))]


def fields_of(number):
    """Every fourth one draws random numbers."""
    return {"prompt": prompt_of(number), "max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": number,
            "temperature": 0.8 if number % 4 == 2 else 0}


def ask(proxy, number, leaves_after):
    """("right" | "error" | "left", detail)"""
    body = {**fields_of(number), "stream": number % 2 == 0}
    connection = proxy.connection(timeout_s=REQUEST_DEADLINE_S)
    with contextlib.closing(connection):
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            if leaves_after is not None:
                connection.sock.settimeout(leaves_after)
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection.getresponse().read()
                return "left", None
            response = connection.getresponse()
            raw = response.read().decode()
        except socket.timeout:
            return "hang", f"no answer within {REQUEST_DEADLINE_S} s"
        except (OSError, http.client.HTTPException) as error:
            return "broken", repr(error)  # the proxy itself is never touched
        if response.status != 200:
            return ("error" if response.status >= 500 else "broken"), f"{response.status} {raw[:300]}"
        if not body["stream"]:
            return "text", json.loads(raw)["choices"][0]["text"]
        text = ""
        for line in raw.splitlines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return "error", json.dumps(event["error"])
            text += "".join(choice["text"] for choice in event["choices"])
        return ("text", text) if raw.rstrip().endswith("data: [DONE]") else ("broken", "a stream without an end")


def run(requests, connector, policy, seed, shape="tiny-t7", streams=8):
    rng = random.Random(seed)
    outcomes, wrong = collections.Counter(), []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-faults-"))
        model = parity_table.make_model(shape, folder)
        colocated = tandem.serve("colocated", *FLAGS, "--kv-cache-memory-bytes", "16M", model=model)
        stack.callback(colocated.stop)
        colocated.wait_ready()
        expected = {n: colocated.complete(**fields_of(n))["choices"][0]["text"]
                    for n in range(requests)}
        cluster = Cluster(stack, model, connector, policy)
        faults = FaultMaker(cluster, random.Random(seed + 1))
        faults.start()
        leaving = {n: rng.uniform(0.001, 0.3) for n in range(requests) if rng.random() < 0.1}

        def one(number):
            time.sleep(random.Random(seed + number).uniform(0, 0.1))
            outcome, detail = ask(cluster.proxy, number, leaving.get(number))
            if outcome == "text":
                outcome = "right" if detail == expected[number] else "WRONG"
            return number, outcome, detail

        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            for number, outcome, detail in pool.map(one, range(requests)):
                outcomes[outcome] += 1
                if outcome not in ("right", "error", "left"):
                    wrong.append((number, outcome, detail))
        faults.finish()
        # Whoever was left without a word waits for the rest of a lease's term.
        tandem.assert_blocks_come_back(*cluster.instances.values(), within_s=3 * LEASE_TERM_S + 4)
        tandem.assert_scores_zero(cluster.proxy, within_s=5)
        outcomes["streams gone on elsewhere"] = int(cluster.proxy.metric("tandem:proxy_stream_resumes_total"))
    return outcomes, faults.counts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--connector", choices=list(parity_table.CONNECTORS), default="pull")
    parser.add_argument("--policy", choices=("fail", "recompute"), default="fail")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    outcomes, faults, wrong = run(arguments.requests, arguments.connector, arguments.policy, arguments.seed)
    for each in wrong:
        print("FAILED:", *each)
    print(f"{arguments.requests} requests, {arguments.connector}, policy {arguments.policy}: {dict(outcomes)}; "
          f"{sum(faults.values())} faults {dict(faults)}; {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

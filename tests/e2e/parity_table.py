#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parity table: every way KV moves gives the tokens of the colocated run, for every pair of layouts.

    python3 tests/e2e/parity_table.py                 # everything, some minutes
    python3 tests/e2e/parity_table.py --models tiny-t7 --connectors pull --tp 1,3

A cell is one prefiller and one decoder over real processes, behind a proxy of their own, and three prompts that nobody
saw before (so that no prefix is cached): shorter than a block, longer than a chunk, ending in the middle of a block. It
is right if token strings and log-probabilities equal the colocated instance's to the last bit, and KV did move.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tandem_processes as tandem

CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector",
              "ranktable": "LLMDataDistCMgrConnector"}
BLOCKS = ((16, 16), (16, 64), (128, 16))  # prefiller's and decoder's --block-size
TRANSPORTS = ("shm", "tcp")
PROMPT_LENGTHS = (7, 128, 203)
FLAGS = ["--max-model-len", "512", "--max-num-batched-tokens", "96", "--kv-cache-memory-bytes", "24M",
         "--max-num-seqs", "4"]


def make_model_binary():
    found = os.environ.get("TANDEM_MAKE_MODEL")
    if found:
        return found
    build = pathlib.Path(tandem.BINARY).resolve().parent
    return str(build / "tools/make_model/tandem-make-model")


def make_model(shape, folder):
    """A path that `serve` takes: a generated model, or the real one by its name."""
    if shape == "smollm2":
        return tandem.SMOLLM2
    path = str(pathlib.Path(folder) / shape)
    subprocess.run([make_model_binary(), "--shape", shape, "--output", path], check=True, stdout=subprocess.DEVNULL)
    return path


def sizes(shape, wanted):
    """Tensor-parallel sizes that divide the model's attention heads and its MLP."""
    heads, inner = {"tiny-t1": (6, 80), "tiny-t4": (9, 96), "tiny-t6": (12, 144), "tiny-t7": (12, 144),
                    "smollm2": (9, 1536)}[shape]
    return [tp for tp in wanted if heads % tp == 0 and inner % tp == 0]


class Side:
    """Starts the instances of one role: one for each combination of its settings."""

    def __init__(self, stack, role, model, connector, settings, environment):
        self.instances = {}
        for tp, block, transport in settings:
            name = f"{role[3]}-tp{tp}-b{block}-{transport}"
            kv_port = tandem.free_port(tp)
            instance = tandem.serve(
                name, *FLAGS, "--tensor-parallel-size", tp, "--block-size", block, "--kv-transport", transport,
                model=model, role=role, kv_port=kv_port, transfer={"kv_connector": CONNECTORS[connector]},
                environment={**environment, "VLLM_ASCEND_LLMDD_RPC_PORT": str(kv_port)})
            stack.callback(instance.stop)
            self.instances[tp, block, transport] = instance
        for instance in self.instances.values():
            instance.wait_ready()


def rank_table(folder):
    """A table of this host with eight prefill and eight decode devices."""
    path = pathlib.Path(folder) / "ranktable.json"
    if not path.exists():
        subprocess.run([tandem.BINARY, "ranktable", "--ips", "127.0.0.1", "--npus-per-node", "16",
                        "--prefill-device-cnt", "8", "--decode-device-cnt", "8", "--output", str(path)],
                       check=True, stdout=subprocess.DEVNULL)
    return path


def answer(process, prompt):
    body = process.complete(prompt, max_tokens=10, logprobs=0, ignore_eos=True)
    choice = body["choices"][0]
    return choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


def prompts_of(cell, vocabulary=250):
    rng = random.Random(json.dumps(cell))
    return [[rng.randrange(1, vocabulary) for _ in range(length)] for length in PROMPT_LENGTHS]


def run_cell(cell, prefiller, decoder, colocated, connector):
    """None, or what is wrong."""
    before = decoder.metric("tandem:kv_transfer_bytes_total")
    flow = "layerwise" if connector == "layerwise" else "pull"
    proxy = tandem.proxy([prefiller], [decoder], "--connector", flow).wait_ready()
    try:
        for prompt in prompts_of(cell):
            got, expected = answer(proxy, prompt), answer(colocated, prompt)
            if got != expected:
                return f"{len(prompt)} tokens: {got} instead of {expected}"
    except AssertionError as error:
        return str(error)
    finally:
        proxy.stop()
    if decoder.metric("tandem:kv_transfer_bytes_total") <= before:
        return "no KV moved"
    return None


def run_model(shape, arguments, folder):
    failures, done = [], 0
    model = make_model(shape, folder)
    with contextlib.ExitStack() as outer:
        colocated = tandem.serve("colocated", *FLAGS, "--block-size", "16", model=model)
        outer.callback(colocated.stop)
        colocated.wait_ready()
        tps = sizes(shape, arguments.tp)
        for connector in arguments.connectors:
            with contextlib.ExitStack() as stack:
                environment = {"DISAGGREGATED_PREFILL_RANK_TABLE_PATH": str(rank_table(folder))} \
                    if connector == "ranktable" else {}
                prefill = Side(stack, "kv_producer", model, connector,
                               itertools.product(tps, sorted({p for p, _ in BLOCKS}), ["auto"]), environment)
                decode = Side(stack, "kv_consumer", model, connector,
                              itertools.product(tps, sorted({d for _, d in BLOCKS}), TRANSPORTS), environment)
                cells = list(itertools.product(tps, tps, BLOCKS, TRANSPORTS))

                def run(cell):
                    p_tp, d_tp, (p_block, d_block), transport = cell
                    return run_cell([shape, connector, *cell], prefill.instances[p_tp, p_block, "auto"],
                                    decode.instances[d_tp, d_block, transport], colocated, connector)

                # One decoder per cell at a time: "KV did move" is read from its counter.
                results = dict(zip(cells, map(run, cells)))
                print_table(shape, connector, tps, results)
                failures += [(shape, connector, *cell, why) for cell, why in results.items() if why]
                done += len(cells)
    return done, failures


def print_table(shape, connector, tps, results):
    print(f"\n{shape}, {connector}: rows are the prefiller's TP, columns the decoder's")
    for blocks in BLOCKS:
        for transport in TRANSPORTS:
            print(f"  blocks {blocks[0]} -> {blocks[1]}, {transport:4}" + "".join(f"{tp:>6}" for tp in tps))
            for p_tp in tps:
                marks = ["same" if results[p_tp, d_tp, blocks, transport] is None else "WRONG" for d_tp in tps]
                print(f"  {p_tp:>22}" + "".join(f"{mark:>6}" for mark in marks))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(text):
        return text.split(",")

    parser.add_argument("--models", type=names, default=["tiny-t6", "tiny-t7", "tiny-t1", "tiny-t4", "smollm2"])
    parser.add_argument("--connectors", type=names, default=list(CONNECTORS))
    parser.add_argument("--tp", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 3, 4])
    arguments = parser.parse_args()
    started, done, failures = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory(prefix="tandem-parity-") as folder:
        for shape in arguments.models:
            cells, wrong = run_model(shape, arguments, folder)
            done += cells
            failures += wrong
    for failure in failures:
        print("WRONG:", *failure[:-1], failure[-1][:300])
    print(f"\n{done} cells, {len(failures)} wrong, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The longest context of the guides: YaRN 4.0 over 32768 positions, one request that fills 131,072 positions. Its KV crosses
from a prefiller to a decoder whole, and the tokens are those of one colocated process.

    python3 tests/e2e/long_context.py                  # pull and layerwise, TP 2 to TP 1; some minutes
    python3 tests/e2e/long_context.py --positions 16384
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tandem_processes as tandem
from parity_table import CONNECTORS, make_model_binary

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CONFIG = {"model_type": "qwen3", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
          "rope_theta": 1000000.0, "tie_word_embeddings": False, "max_position_embeddings": 40960}
BYTES_PER_TOKEN = 2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * CONFIG["head_dim"] * 2  # K, V; bf16
OUTPUT = 8
BLOCK = 16


def make_model(folder):
    config = pathlib.Path(folder) / "config.json"
    config.write_text(json.dumps(CONFIG))
    path = str(pathlib.Path(folder) / "model")
    subprocess.run([make_model_binary(), "--config", str(config), "--output", path], check=True,
                   stdout=subprocess.DEVNULL)
    return path


def answer(where, prompt):
    begin = time.monotonic()
    status, body = where.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": OUTPUT, "logprobs": 1,
                                                  "ignore_eos": True}, timeout_s=1800)
    assert status == 200, f"{where.name}: {status} {body}"
    logprobs = body["choices"][0]["logprobs"]
    return (logprobs["tokens"], logprobs["token_logprobs"]), time.monotonic() - begin


def check_connector(connector, model, flags, prompt, expected):
    """Seconds it took; fails if tokens or bytes are not right."""
    transfer = {"kv_connector": CONNECTORS[connector]}
    prefill = tandem.serve("P1", *flags, "-tp", 2, model=model, role="kv_producer", transfer=transfer)
    decode = tandem.serve("D1", *flags, model=model, role="kv_consumer", transfer=transfer)
    prefill.wait_ready()
    decode.wait_ready()
    proxy = tandem.proxy([prefill], [decode]).wait_ready()
    try:
        got, seconds = answer(proxy, prompt)
        assert got == expected, f"{connector}: {got} instead of {expected}"
        moved = decode.metric("tandem:kv_transfer_bytes_total")
        # All but the last prompt token, which the decoder computes.
        least = (len(prompt) - 1) // BLOCK * BLOCK * BYTES_PER_TOKEN
        assert moved >= least, f"{connector}: {moved} bytes of KV moved, expected {least} at least"
        return seconds, moved
    finally:
        for process in (proxy, decode, prefill):
            process.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=131072, help="prompt and output together")
    arguments = parser.parse_args()
    rng = random.Random(131072)
    prompt = [rng.randrange(1, 300) for _ in range(arguments.positions - OUTPUT)]
    kv_bytes = (arguments.positions + BLOCK) * BYTES_PER_TOKEN
    flags = ["--max-model-len", arguments.positions, "--rope-scaling", json.dumps(YARN), "--max-num-batched-tokens", 4096,
             "--block-size", BLOCK, "--kv-cache-memory-bytes", kv_bytes]
    with tempfile.TemporaryDirectory(prefix="tandem-long-") as folder:
        model = make_model(folder)
        colocated = tandem.serve("colocated", *flags, model=model).wait_ready()
        expected, seconds = answer(colocated, prompt)
        status, body = colocated.post("/v1/completions", {"prompt": prompt + [1], "max_tokens": OUTPUT})
        assert status == 400 and "maximum context length" in json.dumps(body), f"one token too many: {status} {body}"
        colocated.stop()
        print(f"colocated: {len(prompt)} prompt tokens in {seconds:.0f} s: {expected[0]}", flush=True)
        for connector in ("pull", "layerwise"):
            seconds, moved = check_connector(connector, model, flags, prompt, expected)
            print(f"{connector}: the same tokens and log-probabilities in {seconds:.0f} s, {moved / 2**20:.1f} MiB of KV "
                  f"({moved / BYTES_PER_TOKEN:.0f} tokens) moved", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

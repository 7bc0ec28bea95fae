#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make bench`: prefill and decode tokens/s next to the machine's limits and to llama.cpp, then kernels, KV transfer,
# proxy and API. Results also go to build/bench/. Wants an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
mkdir -p build/bench
say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }

say "model runner, the machine's limits, and llama.cpp"
python3 bench/serving/run.py --build "$build"

for program in kernels_linear_bench kernels_attention_bench kernels_experts_bench transfer_bench proxy_overhead_bench; do
  path=$(find "$build/bench" -name "$program" -type f | head -1)
  [ -n "$path" ] || continue
  say "$program"
  case "$program" in
    kernels_*) "$path" --benchmark_min_time=0.1 --benchmark_out="build/bench/$program.json" --benchmark_out_format=json ;;
    *) "$path" | tee "build/bench/$program.txt" ;;
  esac
done

say "API and text around a model, and streams that one core carries"
tools/fetch_test_data.sh qwen3
python3 bench/api/run.py --build "$build"

if [ "$(id -u)" -eq 0 ]; then
  say "waiting for KV after the prefill: pull and layerwise push"
  python3 bench/transfer/push_over_link.py --build "$build"
  say "rounds between the processes of an instance"
  python3 bench/comm/rounds.py --build "$build" | tee build/bench/comm_rounds.txt
  say "steps of an instance over two hosts next to one"
  python3 bench/comm/steps.py --build "$build" | tee build/bench/comm_steps.txt
else
  echo "bench: push_over_link.py and comm/*.py are left out, they need root for network namespaces"
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo behind `make demo`: one prefiller, one decoder and a proxy on this machine, one question through them.
# Leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/fetch_model.sh
question=${QUESTION:-"What is the capital of France?"}
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
mkdir -p build
log=build/demo.log

echo "demo: starting 1 prefiller, 1 decoder and a proxy (log: $log)"
build/tandem up --model models/SmolLM2-135M-Instruct.Q4_1.gguf --prefill 1 --decode 1 --port "$port" \
  -- --served-model-name smollm2 --max-model-len 4096 >"$log" 2>&1 &
cluster=$!
trap 'kill -INT "$cluster" 2>/dev/null || true; wait "$cluster" 2>/dev/null || true' EXIT

shown=0
for _ in $(seq 1 600); do
  # Pass the progress lines of `tandem up` on as they come.
  lines=$(grep -c '^up: ' "$log" || true)
  if [ "$lines" -gt "$shown" ]; then grep '^up: ' "$log" | tail -n +"$((shown + 1))"; shown=$lines; fi
  grep -q '^up: ready' "$log" && break
  kill -0 "$cluster" 2>/dev/null || { echo "demo: the cluster did not start:" >&2; tail -30 "$log" >&2; exit 1; }
  sleep 0.2
done
grep -q '^up: ready' "$log" || { echo "demo: not ready within two minutes" >&2; tail -30 "$log" >&2; exit 1; }

echo
echo "demo: asking through the proxy at port $port: $question"
python3 tools/ask.py "http://127.0.0.1:$port" "$question"

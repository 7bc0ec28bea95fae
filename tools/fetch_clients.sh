#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gets the clients that tests/e2e/test_clients.py runs into .cache/clients/ (ignored by git): a virtual environment with the
# Python packages of tests/clients/requirements.txt, and node_modules by tests/clients/package-lock.json (200 MB together).
# Every version is pinned. Does nothing where they are already there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
wanted=$root/tests/clients
target=$root/.cache/clients
mkdir -p "$target"

# installed NAME FILE: whether NAME was made from FILE as it is now.
installed() { [ "$(cat "$target/$1.complete" 2>/dev/null)" = "$(sha256sum <"$2")" ]; }

if installed venv "$wanted/requirements.txt"; then
  echo "clients: Python packages already in .cache/clients/venv"
else
  echo "clients: installing the packages of tests/clients/requirements.txt with pip into .cache/clients/venv"
  rm -f "$target/venv.complete"
  python3 -m venv --clear "$target/venv"
  "$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$wanted/requirements.txt"
  sha256sum <"$wanted/requirements.txt" >"$target/venv.complete"
fi

if installed npm "$wanted/package-lock.json"; then
  echo "clients: npm packages already in .cache/clients/node_modules"
else
  for needed in node npm; do
    command -v $needed >/dev/null || { echo "tools/fetch_clients.sh: $needed is needed (Debian packages nodejs, npm)" >&2; exit 1; }
  done
  echo "clients: installing the packages of tests/clients/package-lock.json with npm into .cache/clients/node_modules"
  rm -f "$target/npm.complete"
  cp "$wanted/package.json" "$wanted/package-lock.json" "$target/"
  (cd "$target" && npm ci --silent --ignore-scripts --no-audit --no-fund)
  sha256sum <"$wanted/package-lock.json" >"$target/npm.complete"
fi

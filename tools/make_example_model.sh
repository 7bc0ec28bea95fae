#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model of examples/qwen3-moe-*: Qwen3-MoE made small, with generated weights and Qwen3's own tokenizer and chat
# template, in build/models/qwen3-moe-small. Usage: tools/make_example_model.sh [FOLDER OF tandem AND ITS TOOLS]
set -euo pipefail
cd "$(dirname "$0")/.."
built=${1:-build/product}
target=build/models/qwen3-moe-small
if [ -s "$target/config.json" ]; then echo "model: $target is here"; exit 0; fi
tools/fetch_test_data.sh qwen3
mkdir -p build/models
rm -rf "$target.part"
"$built/tools/make_model/tandem-make-model" --shape qwen3-moe-small --tokenizer .cache/tokenizers/qwen3 \
  --output "$target.part"
mv "$target.part" "$target"
echo "model: $target ($(du -sh "$target" | cut -f1))"

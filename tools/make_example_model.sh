#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model of examples/qwen3-moe-*: Qwen3-MoE made small, with generated weights and Qwen3's own tokenizer and chat
# template, in build/models/qwen3-moe-small; and its W8A8 files, as `--quantization ascend` takes them, in
# build/models/qwen3-moe-small-w8a8. Usage: tools/make_example_model.sh [FOLDER OF tandem AND ITS TOOLS]
set -euo pipefail
cd "$(dirname "$0")/.."
built=${1:-build/product}
target=build/models/qwen3-moe-small
if [ -s "$target-w8a8/config.json" ]; then echo "model: $target and $target-w8a8 are here"; exit 0; fi
tools/fetch_test_data.sh qwen3
mkdir -p build/models
rm -rf "$target" "$target.part" "$target-w8a8" "$target-w8a8.part"
"$built/tools/make_model/tandem-make-model" --shape qwen3-moe-small --tokenizer .cache/tokenizers/qwen3 \
  --output "$target.part"
mv "$target.part" "$target"
"$built/tandem" quantize "$target" "$target-w8a8.part" | tail -2
mv "$target-w8a8.part" "$target-w8a8"
echo "model: $target ($(du -sh "$target" | cut -f1))"

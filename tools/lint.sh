#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting, layers, coroutine rules and clang-tidy. Every check runs; the exit code is 1 if any found something.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }

say "clang-format"
git ls-files '*.h' '*.cc' | xargs clang-format-19 --dry-run --Werror || failed=1

say "layers"
python3 tools/check_layers.py || failed=1

say "coroutine rules"
python3 tools/lint_coroutines.py || failed=1

say "clang-tidy"
mkdir -p build
cmake --preset clang >build/lint-configure.log 2>&1 || { cat build/lint-configure.log; exit 1; }
# Generated headers (the bridge to the Rust crate) must exist before the analyser reads their users.
cmake --build --preset clang --target tandem_text_crate_build >build/lint-build.log 2>&1 || { cat build/lint-build.log; exit 1; }
# With TIDY_BASE set, only files that differ from that commit; in CI that is unset and everything is read.
if [ -n "${TIDY_BASE:-}" ]; then
  files=$(git diff --name-only "$TIDY_BASE" -- 'src/*.cc' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
else
  files=$(git ls-files 'src/*.cc')
fi
# Kernels of arm64 are no part of this build; clang-tidy would read them as x86-64.
files=$(echo "$files" | grep -vE '_(neon|dotprod)\.cc$')
if [ -n "$files" ]; then
  echo "$files" | xargs -P "$(nproc)" -n 2 clang-tidy-19 -p build/clang --quiet 2>build/clang-tidy.err || failed=1
  grep -v 'warnings generated\|^Suppressed\|^Use ' build/clang-tidy.err | head -40
fi
[ "$failed" -eq 0 ] && echo "lint: clean"
exit "$failed"

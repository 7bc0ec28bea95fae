#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every libFuzzer target (clang 19, ASan and UBSan) and runs each for FUZZ_SECONDS.
# A crash leaves its input in build/fuzz/findings/ and ends with exit code 1.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-30}
mkdir -p build/fuzz/findings
cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { cat build/fuzz-configure.log; exit 1; }
targets=$(cmake --build --preset fuzz --target help | sed -n 's/^\([a-z0-9_]*_fuzz\): phony$/\1/p' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets were found" >&2; exit 1; }
# shellcheck disable=SC2086
cmake --build --preset fuzz --parallel "$(nproc)" --target $targets || exit 1
failed=0
run_one() {
  local target=$1 binary corpus
  binary=$(find build/fuzz/tests -name "$target" -type f | head -1)
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  if "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -max_len=65536 -print_final_stats=0 \
      -artifact_prefix="build/fuzz/findings/$target-" "$corpus" >"build/fuzz/$target.log" 2>&1; then
    echo "fuzz: $target ran ${seconds} s, $(grep -c . < <(ls "$corpus")) inputs kept, clean"
  else
    echo "fuzz: $target FAILED:"; tail -40 "build/fuzz/$target.log"; return 1
  fi
}
# Two at a time: the machine of the tests has two cores.
pids=()
for target in $targets; do
  run_one "$target" & pids+=($!)
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || failed=1; done
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit "$failed"

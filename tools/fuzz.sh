#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every libFuzzer target (preset asan, as the tests under sanitizers) and runs each for the seconds that its
# tandem_fuzz() says, or for FUZZ_SECONDS. With arguments: only these targets. A crash leaves its input in
# build/asan/findings/ and ends with exit code 1.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/asan/findings
cmake --preset asan >build/asan-configure.log 2>&1 || { cat build/asan-configure.log; exit 1; }
declare -A seconds_of seeds_of
while read -r target seconds seeds; do
  seconds_of[$target]=${FUZZ_SECONDS:-$seconds} seeds_of[$target]=$seeds
done <build/asan/fuzz_targets.txt
[ $# -gt 0 ] || set -- "${!seconds_of[@]}"
[ $# -gt 0 ] || { echo "no fuzz targets were found" >&2; exit 1; }
cmake --build --preset asan --parallel "$(nproc)" --target "$@" || exit 1

# Reports name functions and lines only with a symbolizer, which comes with another package than the compiler.
symbolizer=$(command -v llvm-symbolizer-19 llvm-symbolizer llvm-symbolizer-14 addr2line | head -1)
export ASAN_SYMBOLIZER_PATH=$symbolizer UBSAN_OPTIONS=print_stacktrace=1

# What a failed run says: the reports of the sanitizers and of libFuzzer with their stacks, not the progress lines.
report() {
  awk '/ERROR:|runtime error:|libFuzzer: (timeout|out-of-memory)/ { left = 60 }
       /SUMMARY:|Test unit written|^terminate called|Assertion/ { print; next }
       left > 0 { print; left-- }' "$1" | grep -v '^#[0-9]*[[:space:]]*[A-Zp]\|NEW_FUNC' | head -150
}

run_one() {
  local target=$1 seconds=${seconds_of[$1]} seeds=${seeds_of[$1]}
  local folder=build/asan/corpus/$1 log=build/asan/$1.log binary
  local arguments=() corpora=("$folder/kept")
  binary=$(find build/asan/tests -name "$target" -type f | head -1)
  mkdir -p "$folder/kept"
  if [ "$seeds" != - ]; then
    python3 tests/fuzz/seeds.py "$seeds" "$folder" || return 1
    arguments+=("-dict=$folder/dictionary") corpora+=("$folder/seeds")
  fi
  if "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -max_len=65536 -print_final_stats=0 \
      -artifact_prefix="build/asan/findings/$target-" "${arguments[@]}" "${corpora[@]}" >"$log" 2>&1; then
    echo "fuzz: $target ran $seconds s, $(find "$folder/kept" -type f | wc -l) inputs kept," \
         "$(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log") edges reached, clean"
  else
    echo "fuzz: $target FAILED; all it said is in $log:"; report "$log"; return 1
  fi
}

failed=0
# Two at a time, the longest first: the machine of the tests has two cores.
pids=()
for target in $(for t in "$@"; do echo "${seconds_of[$t]} $t"; done | sort -rn | cut -d' ' -f2); do
  run_one "$target" & pids+=($!)
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n || failed=1; done
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit "$failed"

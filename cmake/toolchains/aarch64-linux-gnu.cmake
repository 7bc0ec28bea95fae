# SPDX-License-Identifier: Apache-2.0
# Cross build for arm64 on an x86-64 Debian 12: Debian's cross compiler, the arm64 libraries that tools/fetch_arm64_root.sh
# unpacked, and qemu's user emulation for whatever the build or ctest runs. On an arm64 machine nothing of this is needed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)

cmake_path(SET arm64_root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../../.cache/arm64-root)
if(NOT EXISTS ${arm64_root}/packages)
  message(FATAL_ERROR "${arm64_root} is not there or not whole; tools/fetch_arm64_root.sh makes it")
endif()
set(CMAKE_SYSROOT ${arm64_root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# `max` has every extension that qemu knows, so the kernels that a CPU is asked for at run time are tried too.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;max;-L;${arm64_root})

# src/text/CMakeLists.txt builds the crate for it.
set(TANDEM_CARGO_TARGET aarch64-unknown-linux-gnu)

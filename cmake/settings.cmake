# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, sanitizers, ccache: everything that holds for all of our targets.
option(TANDEM_BUILD_TESTS "Build the tests" ON)
option(TANDEM_BUILD_BENCH "Build the benchmarks" OFF)
option(TANDEM_BUILD_FUZZ "Build the fuzz targets (clang only)" OFF)
set(TANDEM_SANITIZE "" CACHE STRING "Value for -fsanitize=, for example address,undefined")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# No contraction: a * b + c rounds twice wherever it stands, so that results are equal whether or not the baseline of a
# CPU has a fused multiply-add, as arm64's has. Where it should round once, the code says so.
add_library(tandem_flags INTERFACE)
target_include_directories(tandem_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(tandem_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
                                              -fno-plt -ffp-contract=off)
# libstdc++ 12's own std::stable_sort uses what it calls deprecated; only clang says so.
target_compile_options(tandem_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
target_compile_definitions(tandem_flags INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these on correct code of its own and of Boost's headers once it inlines them.
  target_compile_options(tandem_flags INTERFACE -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
                                                -Wno-restrict -Wno-tsan -Wno-dangling-pointer)
else()
  target_compile_options(tandem_flags INTERFACE -Wthread-safety)
endif()
if(TANDEM_SANITIZE)
  target_compile_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(tandem_flags INTERFACE -fno-sanitize=function)
  endif()
endif()
if(TANDEM_BUILD_FUZZ)
  # Not in the kernels: no outside bytes get there, and counting every comparison makes their tests four times as slow.
  target_compile_options(tandem_flags INTERFACE
    $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,tandem_kernels>>:-fsanitize=fuzzer-no-link>)
endif()

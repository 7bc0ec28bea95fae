// SPDX-License-Identifier: Apache-2.0
// What each program of kernel benchmarks defines; main.cc calls it.
#pragma once

namespace tandem::bench {

/// Registers the program's benchmarks.
void add_benchmarks();

}  // namespace tandem::bench

// SPDX-License-Identifier: Apache-2.0
// Counts what a program allocates. count_allocations.cc replaces malloc, so who links it is a test program of its own;
// under sanitizers, which replace it too, nothing can be counted.
#pragma once

namespace tandem::test {

bool can_count_allocations();
/// What this thread allocates is not counted.
void leave_out_this_thread();
void begin_counting_allocations();
/// How many there were since, of all threads but those left out. May be called on any of them.
int end_counting_allocations();

}  // namespace tandem::test

// SPDX-License-Identifier: Apache-2.0
#include "support/count_allocations.h"

#include <atomic>
#include <cstdlib>

#include "support/sanitizers.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
thread_local bool left_out = false;

[[maybe_unused]] void count_one() {
  if (counting.load(std::memory_order_relaxed) && !left_out) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if !TANDEM_SANITIZER_HAS_MALLOC
// glibc's own entry points, for programs that replace malloc.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);

void* malloc(std::size_t size) {
  count_one();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  count_one();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  count_one();
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count_one();
  return __libc_memalign(alignment, size);
}
void free(void* memory) { __libc_free(memory); }
}
#endif

namespace tandem::test {

bool can_count_allocations() { return !TANDEM_SANITIZER_HAS_MALLOC; }
void leave_out_this_thread() { left_out = true; }
void begin_counting_allocations() {
  allocations = 0;
  counting = true;
}
int end_counting_allocations() {
  counting = false;
  return allocations;
}

}  // namespace tandem::test

// SPDX-License-Identifier: Apache-2.0
// The memfd behind KV memory. Layout of the file: each rank's blocks, padded to a page; one 32-bit generation a block.
#include "kv/cache_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace tandem::kv {
namespace {

constexpr std::size_t kPage = std::size_t{64} << 10;  // of arm64 kernels; others have smaller ones
constexpr std::size_t kHugePage = std::size_t{2} << 20;
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "generation counters live in memory shared between processes");

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Bytes of the blocks, or nullopt if a field is not positive or the product does not fit.
std::optional<std::size_t> checked_bytes(const Layout& layout) {
  if (layout.head_dim <= 0) return std::nullopt;
  std::size_t total = 2 * layout.token_bytes();
  for (const std::int32_t factor : {layout.num_layers, layout.num_blocks, layout.block_size, layout.num_kv_heads}) {
    if (factor <= 0) return std::nullopt;
    if (total > std::numeric_limits<std::size_t>::max() / 4 / static_cast<std::size_t>(factor)) return std::nullopt;
    total *= static_cast<std::size_t>(factor);
  }
  return total;
}

std::string describe(const Layout& layout) {
  return fmt::format("{} layers x {} blocks x {} tokens x {} KV heads x head dim {} of {}", layout.num_layers,
                     layout.num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim,
                     element_name(layout.element));
}

Status size_error(const Layout& layout, std::size_t bytes, int error) {
  return Status(Code::kResourceExhausted,
                fmt::format("cannot get {:.2f} GiB of KV memory ({}): {}; use a smaller KV cache or free memory",
                            static_cast<double>(bytes) / (1ULL << 30), describe(layout), std::strerror(error)),
                Scope::kProcess);
}

}  // namespace

Result<std::unique_ptr<CacheMemory>> CacheMemory::create(std::vector<Layout> ranks) {
  TANDEM_ASSERT(!ranks.empty(), "KV memory has at least one rank");
  std::size_t end = 0;
  for (Layout& layout : ranks) {
    const std::optional<std::size_t> bytes = checked_bytes(layout);
    if (!bytes || layout.first_kv_head < 0 || layout.total_kv_heads < layout.num_kv_heads ||
        layout.first_kv_head > layout.total_kv_heads - layout.num_kv_heads ||
        *bytes > std::numeric_limits<std::size_t>::max() / 4 - end) {
      return Status(Code::kInvalidArgument,
                    fmt::format("impossible KV layout: {}, heads {}..+{} of {}; every size must be positive",
                                describe(layout), layout.first_kv_head, layout.num_kv_heads, layout.total_kv_heads),
                    Scope::kProcess);
    }
    TANDEM_ASSERT(layout.num_blocks == ranks.front().num_blocks, "ranks share their block ids");
    layout.base = end;
    end = round_up(end + *bytes, kPage);
  }
  auto memory = std::unique_ptr<CacheMemory>(new CacheMemory());
  memory->ranks_ = std::move(ranks);
  const Layout& layout = memory->layout();
  memory->generations_offset_ = end;
  const std::size_t counters = static_cast<std::size_t>(layout.num_blocks) * sizeof(std::atomic<std::uint32_t>);
  memory->mapped_bytes_ = round_up(memory->generations_offset_ + counters, kPage);

  memory->fd_ = memfd_create("tandem-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->fd_ < 0) return size_error(layout, memory->mapped_bytes_, errno);
  // posix_fallocate would touch every page now; the pages of a memfd are zeroed when they are first used instead.
  if (ftruncate(memory->fd_, static_cast<off_t>(memory->mapped_bytes_)) != 0) {
    return size_error(layout, memory->mapped_bytes_, errno);
  }
  // A peer that maps the file must never see it shrink under its reads (SIGBUS).
  if (fcntl(memory->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return size_error(layout, memory->mapped_bytes_, errno);
  }
  void* address = mmap(nullptr, memory->mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd_, 0);
  if (address == MAP_FAILED) return size_error(layout, memory->mapped_bytes_, errno);
  memory->data_ = static_cast<std::byte*>(address);
  // Huge pages are a wish: kernels without shmem huge pages refuse, and small pages work too.
  if (memory->mapped_bytes_ >= kHugePage) (void)madvise(address, memory->mapped_bytes_, MADV_HUGEPAGE);

  auto* first = reinterpret_cast<std::atomic<std::uint32_t>*>(memory->data_ + memory->generations_offset_);
  for (std::int32_t block = 0; block < layout.num_blocks; ++block) new (first + block) std::atomic<std::uint32_t>(0);
  memory->generations_ = {first, static_cast<std::size_t>(layout.num_blocks)};
  return memory;
}

void CacheMemory::prefer_node(std::size_t rank, int node) {
  TANDEM_ASSERT(rank < ranks_.size(), "no such rank");
  constexpr int kBits = std::numeric_limits<unsigned long>::digits;
  std::array<unsigned long, 1024 / kBits> nodes{};
  if (node < 0 || node >= static_cast<int>(nodes.size()) * kBits) return;
  nodes[static_cast<std::size_t>(node / kBits)] = 1UL << (node % kBits);
  const Layout& layout = ranks_[rank];
  // The system call itself: libnuma would be a dependency for this one line. The mask's last bit does not count.
  (void)syscall(SYS_mbind, data_ + layout.base, round_up(layout.total_bytes(), kPage), MPOL_PREFERRED, nodes.data(),
                nodes.size() * kBits + 1, 0);
}

CacheMemory::~CacheMemory() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace tandem::kv

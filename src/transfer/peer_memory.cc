// SPDX-License-Identifier: Apache-2.0
// Handing a memfd to a reader on the same host: abstract Unix socket, SCM_RIGHTS, and the checks on both sides that
// make the mapping safe (same user, read-only, cannot shrink, large enough).
#include "transfer/peer_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace tandem::transfer {
namespace {

constexpr std::uint64_t kMemoryMagic = 0x314d454d564b54ULL;  // "TKVMEM1"

struct MemoryMessage {
  std::uint64_t magic = kMemoryMagic;
  std::uint64_t bytes = 0;
  std::uint64_t generations_offset = 0;
};

union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string path = "tandem-kv-" + name;
  if (path.size() + 1 > sizeof address.sun_path) return 0;
  std::memcpy(address.sun_path + 1, path.data(), path.size());  // a leading zero byte makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
}

/// Abstract names have no file permissions: whoever is on the other side must run as we do.
bool same_user(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

Status failed(const std::string& what, int error) {
  return Status(Code::kUnavailable, fmt::format("shared memory: {}: {}", what, std::strerror(error)), Scope::kTransfer);
}

Result<int> receive_descriptor(int fd, MemoryMessage& message, std::chrono::milliseconds timeout) {
  pollfd ready{fd, POLLIN, 0};
  const int count = poll(&ready, 1, static_cast<int>(timeout.count()));
  if (count <= 0) return failed("no answer from the peer", count == 0 ? ETIMEDOUT : errno);
  iovec part{&message, sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  const ssize_t received = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) return failed("receive", errno);
  int descriptor = -1;
  for (const cmsghdr* part_header = CMSG_FIRSTHDR(&header); part_header != nullptr;) {
    if (part_header->cmsg_level == SOL_SOCKET && part_header->cmsg_type == SCM_RIGHTS &&
        part_header->cmsg_len == CMSG_LEN(sizeof(int))) {
      std::memcpy(&descriptor, CMSG_DATA(part_header), sizeof(int));
    }
    break;  // the buffer has room for one
  }
  if (descriptor < 0) return failed("the peer did not hand over its memory", EPROTO);
  if (received != sizeof message || message.magic != kMemoryMagic) {
    close(descriptor);
    return failed("the peer's answer is not of our protocol", EPROTO);
  }
  return descriptor;
}

}  // namespace

PeerMemory::~PeerMemory() { munmap(const_cast<std::byte*>(data_), bytes_); }

std::uint32_t PeerMemory::generation(std::int32_t block) const {
  // The owner raises the counter before it writes the block anew. Reads of the block that come before this fence saw
  // nothing of those writes if the counter is still the old one.
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto* counters = reinterpret_cast<const std::atomic<std::uint32_t>*>(data_ + generations_offset_);
  return counters[block].load(std::memory_order_acquire);
}

Result<Socket> listen_memory(const std::string& name) {
  sockaddr_un address{};
  const socklen_t size = abstract_address(name, address);
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (size == 0 || !socket || bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket.fd(), 64) != 0) {
    return failed(fmt::format("cannot listen on @tandem-kv-{}", name), size == 0 ? ENAMETOOLONG : errno);
  }
  return socket;
}

void serve_memory(const Socket& connection, int memory_fd, std::size_t bytes, std::size_t generations_offset) {
  if (!same_user(connection.fd())) {
    log::warning("transfer: refused to share KV memory with a process of another user");
    return;
  }
  // Opening it anew read-only: the memfd itself would let the reader write.
  const Socket read_only(open(fmt::format("/proc/self/fd/{}", memory_fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only) {
    log::warning("transfer: cannot reopen KV memory read-only ({}): readers will use TCP", std::strerror(errno));
    return;
  }
  MemoryMessage message;
  message.bytes = bytes;
  message.generations_offset = generations_offset;
  iovec part{&message, sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = read_only.fd();
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  if (sendmsg(connection.fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    log::warning("transfer: cannot hand over KV memory: {}", std::strerror(errno));
  }
}

Result<std::shared_ptr<PeerMemory>> map_peer_memory(const std::string& name, std::size_t min_bytes,
                                                    std::int32_t num_blocks, std::chrono::milliseconds timeout) {
  sockaddr_un address{};
  const socklen_t size = abstract_address(name, address);
  const Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (size == 0 || !socket || connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return failed(fmt::format("cannot connect to @tandem-kv-{}", name), size == 0 ? ENAMETOOLONG : errno);
  }
  if (!same_user(socket.fd())) return failed("the peer runs as another user", EPERM);
  MemoryMessage message;
  TANDEM_ASSIGN(const int descriptor, receive_descriptor(socket.fd(), message, timeout));
  const Socket memory(descriptor);
  struct stat file{};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (fstat(descriptor, &file) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return failed("the peer's memory is not sealed against shrinking", EPROTO);
  }
  const std::uint64_t counters = static_cast<std::uint64_t>(num_blocks) * sizeof(std::uint32_t);
  if (message.bytes > static_cast<std::uint64_t>(file.st_size) || message.generations_offset < min_bytes ||
      message.generations_offset % sizeof(std::uint32_t) != 0 || message.generations_offset > message.bytes ||
      counters > message.bytes - message.generations_offset) {
    return failed("the peer's memory does not have the size of its layout", EPROTO);
  }
  void* mapped = mmap(nullptr, message.bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return failed("cannot map the peer's memory", errno);
  return std::make_shared<PeerMemory>(static_cast<const std::byte*>(mapped), message.bytes, message.generations_offset);
}

}  // namespace tandem::transfer

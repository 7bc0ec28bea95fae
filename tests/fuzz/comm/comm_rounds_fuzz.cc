// SPDX-License-Identifier: Apache-2.0
// What a peer sends on a link of rounds: any bytes, in pieces. A round either ends with what a well-formed stream says,
// waits for more, or fails.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "comm/links.h"

namespace comm = tandem::comm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) std::abort();
  const tandem::Socket peer(pair[1]);
  std::vector<tandem::Channel> channels(2);
  channels[1] = tandem::Channel(tandem::Socket(pair[0]));
  comm::Links links(std::move(channels), 0, 1);
  const std::vector<comm::Bytes> nothing(2);
  const std::size_t step = std::size_t{1} + data[0];
  links.begin(nothing);
  for (std::size_t at = 1; at < size && links.failure() == nullptr;) {
    const std::size_t count = std::min(step, size - at);
    const ssize_t sent = send(peer.fd(), data + at, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) break;
    at += static_cast<std::size_t>(sent);
    while (links.failure() == nullptr && links.advance()) {
    }
    if (links.failure() == nullptr && links.done()) {
      std::size_t sum = 0;
      for (const std::byte byte : links.received()[1]) sum += static_cast<std::size_t>(byte);
      if (sum > size * 255) std::abort();
      links.begin(nothing);
    }
  }
  return 0;
}

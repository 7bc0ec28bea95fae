// SPDX-License-Identifier: Apache-2.0
// The reader's end of a data connection against an owner that sends anything: it must end, and write nowhere but into
// the runs that it asked for.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "transfer/transport.h"

namespace {

using namespace tandem;
using namespace tandem::transfer;

constexpr std::byte kGuard{0xa5};

/// Well-formed headers are too rare in random bytes: the input chooses frames, and only sometimes raw bytes.
std::vector<std::byte> stream_from(std::span<const std::uint8_t> input) {
  std::vector<std::byte> stream;
  while (input.size() >= 3) {
    const std::uint8_t kind = input[0];
    const std::size_t length = static_cast<std::size_t>(input[1]) * 8 + input[2] % 8U;
    input = input.subspan(3);
    const std::size_t taken = std::min(length, input.size());
    if (kind % 4 != 0) {
      const wire::HeaderBytes header =
          wire::make_header(kind % 4 == 1 ? kind / 4 : wire::kDataType, static_cast<std::uint32_t>(length));
      stream.insert(stream.end(), header.begin(), header.end());
    }
    for (const std::uint8_t byte : input.first(taken)) stream.push_back(static_cast<std::byte>(byte));
    // Data frames are filled up, so that a few bytes of input can be a whole answer.
    if (kind % 4 == 2) stream.insert(stream.end(), length - taken, std::byte{1});
    input = input.subspan(taken);
  }
  return stream;
}

/// Accepts the one connection and says what the input says.
void answer(const Socket& listener, const std::vector<std::byte>& stream) {
  const Socket peer(accept(listener.fd(), nullptr, nullptr));
  if (!peer) std::abort();
  (void)!send(peer.fd(), stream.data(), stream.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)shutdown(peer.fd(), SHUT_WR);
  char drain[4096];
  (void)!recv(peer.fd(), drain, sizeof drain, MSG_DONTWAIT);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Socket listener = std::move(*listen_tcp("127.0.0.1", 0, "a test"));
  static const std::vector<Address> addresses = *resolve("127.0.0.1", bound_port(listener));
  auto loop = std::move(*EventLoop::create());
  std::vector<std::byte> memory(4096, kGuard);
  const std::vector<Copy> copies = {{1000, 100, 300}, {0, 900, 1}, {5000, 2000, 1000}};
  MoveRequest request;
  request.copies = copies;
  request.destination = memory.data();
  request.on_progress = [](std::uint64_t) {};
  int done = 0;
  request.on_done = [&](const Status&) {
    ++done;
    loop->stop();
  };
  TcpPeer peer;
  peer.addresses = addresses;
  peer.name = "fuzz";
  const auto move = make_tcp_transport(*loop, peer)->start(std::move(request));
  // The connection is in the backlog before the loop runs on, so accepting does not block.
  loop->post([&] { answer(listener, stream_from({data, size})); });
  loop->run();
  if (done != 1) std::abort();
  for (const Copy& copy : copies) {
    std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(copy.destination_offset), copy.length, kGuard);
  }
  if (!std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == kGuard; })) std::abort();
  return 0;
}

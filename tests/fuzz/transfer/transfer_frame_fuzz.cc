// SPDX-License-Identifier: Apache-2.0
// Frames from a peer: any bytes, cut anywhere. What is accepted must survive being written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "transfer/wire.h"

namespace wire = tandem::transfer::wire;

namespace {

void check_round_trip(const wire::Message& message) {
  std::vector<std::byte> bytes;
  wire::append_frame(message, bytes);
  wire::FrameReader reader;
  reader.append(bytes);
  auto again = reader.next();
  if (!again || !again->has_value() || !(**again == message)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data + 2), size - 2);
  // One payload of any type, without having to guess a header.
  if (auto message = wire::parse_payload(data[0], rest)) check_round_trip(*message);
  // A stream in steps of a size that the input chooses.
  const std::size_t step = std::size_t{1} + data[1];
  wire::FrameReader reader;
  for (std::size_t at = 0; at < rest.size(); at += step) {
    reader.append(rest.subspan(at, std::min(step, rest.size() - at)));
    for (;;) {
      auto message = reader.next();
      if (!message) return 0;
      if (!message->has_value()) break;
      check_round_trip(**message);
    }
  }
  return 0;
}

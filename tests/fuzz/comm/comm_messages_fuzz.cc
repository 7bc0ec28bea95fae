// SPDX-License-Identifier: Apache-2.0
// Messages of other processes: any bytes. What is accepted must survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "comm/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = tandem::comm::decode({reinterpret_cast<const std::byte*>(data), size});
  if (!message) return 0;
  const auto bytes = tandem::comm::encode(*message);
  const auto again = tandem::comm::decode(bytes);
  if (!again || tandem::comm::encode(*again) != bytes) std::abort();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// kv_transfer_params as a proxy or a client may send them.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "transfer/handover.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem;
  auto value = parse_json({reinterpret_cast<const char*>(data), size});
  if (!value || !value->is_object()) return 0;
  auto handover = transfer::handover_from_json(value->get_object());
  if (!handover || !handover->has_value()) return 0;
  const boost::json::object written = transfer::to_json(**handover);
  auto again = transfer::handover_from_json(written);
  if (!again || !again->has_value() || transfer::to_json(**again) != written) std::abort();
  return 0;
}

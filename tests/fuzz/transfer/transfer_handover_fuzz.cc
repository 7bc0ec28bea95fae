// SPDX-License-Identifier: Apache-2.0
// kv_transfer_params as a proxy or a client may send them: hand-overs of a pull, deliveries of a layerwise push.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "transfer/delivery.h"
#include "transfer/handover.h"

namespace {

using namespace tandem;

void check_delivery(const boost::json::object& params) {
  auto delivery = transfer::delivery_from_json(params);
  if (!delivery || !delivery->has_value()) return;
  boost::json::object written = transfer::to_json(**delivery);
  written["do_remote_decode"] = true;
  auto again = transfer::delivery_from_json(written);
  written.erase("do_remote_decode");
  if (!again || !again->has_value() || transfer::to_json(**again) != written) std::abort();
}

void check(const boost::json::object& params) {
  check_delivery(params);
  auto handover = transfer::handover_from_json(params);
  if (!handover || !handover->has_value()) return;
  const boost::json::object written = transfer::to_json(**handover);
  auto again = transfer::handover_from_json(written);
  if (!again || !again->has_value() || transfer::to_json(**again) != written) std::abort();
}

transfer::Handover sample() {
  transfer::Handover handover;
  handover.engine_id = "p";
  handover.host = "::1";
  handover.port = 30000;
  handover.blocks = {1, 2};
  handover.lease = {1, 2};
  handover.num_tokens = 20;
  handover.block_size = 16;
  return handover;
}

/// Both in one: the members of a hand-over and those that only a delivery has.
boost::json::object sample_params() {
  boost::json::object params = transfer::to_json(sample());
  params["do_remote_decode"] = true;
  boost::json::object& member = params["tandem"].as_object();
  member["incarnation"] = "1";
  member["reception"] = "2";
  member["first_token"] = 16;
  return params;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto value = parse_json({reinterpret_cast<const char*>(data + 1), size - 1});
  if (!value) return 0;
  if (value->is_object()) check(value->get_object());
  // The same value in the place of one member of a good hand-over and delivery.
  boost::json::object params = sample_params();
  boost::json::object& member = params["tandem"].as_object();
  const std::size_t which = data[0] % (params.size() + member.size());
  auto& target =
      which < params.size() ? (params.begin() + which)->value() : (member.begin() + (which - params.size()))->value();
  target = std::move(*value);
  check(params);
  return 0;
}

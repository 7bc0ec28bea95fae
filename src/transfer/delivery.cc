// SPDX-License-Identifier: Apache-2.0
// The JSON form of a delivery.
#include "transfer/delivery.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>
#include <utility>

#include "transfer/params_json.h"

namespace tandem::transfer {
namespace {

namespace json = boost::json;

Result<Delivery> parse(const json::object& params, const json::object& member) {
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
  Delivery delivery;
  TANDEM_ASSIGN(delivery.engine_id, required_name(params, "remote_engine_id"));
  TANDEM_ASSIGN(delivery.host, required_name(params, "remote_host"));
  TANDEM_ASSIGN(const std::int64_t port, required_int(params, "remote_port", "remote_port", 1, 65535));
  delivery.port = static_cast<std::uint16_t>(port);
  TANDEM_ASSIGN(delivery.blocks, required_blocks(params));
  TANDEM_ASSIGN(delivery.incarnation, required_hex(member, "incarnation", "tandem.incarnation"));
  TANDEM_ASSIGN(delivery.reception, required_hex(member, "reception", "tandem.reception"));
  TANDEM_ASSIGN(delivery.num_tokens, required_int(member, "num_tokens", "tandem.num_tokens", 0, kMostTokens));
  TANDEM_ASSIGN(delivery.first_token,
                required_int(member, "first_token", "tandem.first_token", 0, delivery.num_tokens));
  TANDEM_ASSIGN(delivery.prompt_hash, required_hex(member, "prompt_hash", "tandem.prompt_hash"));
  return delivery;
}

}  // namespace

json::object to_json(const Delivery& delivery) {
  json::object member;
  member["incarnation"] = fmt::format("{:x}", delivery.incarnation);
  member["reception"] = fmt::format("{:x}", delivery.reception);
  member["first_token"] = delivery.first_token;
  member["num_tokens"] = delivery.num_tokens;
  member["prompt_hash"] = fmt::format("{:016x}", delivery.prompt_hash);
  json::object params;
  params["remote_block_ids"] = blocks_to_json(delivery.blocks);
  params["remote_engine_id"] = delivery.engine_id;
  params["remote_host"] = delivery.host;
  params["remote_port"] = std::int64_t{delivery.port};  // signed, as a parser would give it
  params["tandem"] = std::move(member);
  return params;
}

Result<std::optional<Delivery>> delivery_from_json(const json::object& params) {
  TANDEM_ASSIGN(const bool wanted, flag(params, "do_remote_decode"));
  if (!wanted) return std::optional<Delivery>();
  TANDEM_ASSIGN(const json::object* member, tandem_member(params));
  if (member == nullptr) return std::optional<Delivery>();
  TANDEM_ASSIGN(Delivery delivery, parse(params, *member));
  return std::optional<Delivery>(std::move(delivery));
}

}  // namespace tandem::transfer

// SPDX-License-Identifier: Apache-2.0
// The JSON form of a hand-over.
#include "transfer/handover.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>
#include <string_view>

#include "base/json.h"
#include "transfer/params_json.h"

namespace tandem::transfer {
namespace {

namespace json = boost::json;

Result<LeaseId> lease_from(const json::object& member) {
  constexpr std::string_view kForm = "\"<hex incarnation>-<hex id>\"";
  TANDEM_ASSIGN(const std::string text, required_text(member, "lease", "tandem.lease", kForm));
  const std::size_t dash = text.find('-');
  LeaseId lease;
  if (text.size() > 33 || dash == std::string::npos ||
      !parse_hex(std::string_view(text).substr(0, dash), lease.incarnation) ||
      !parse_hex(std::string_view(text).substr(dash + 1), lease.id)) {
    return wrong_param("tandem.lease", fmt::format("\"{}\"", text.substr(0, 40)), kForm);
  }
  return lease;
}

Result<Handover> parse(const json::object& params, const json::object& member) {
  constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();
  Handover handover;
  TANDEM_ASSIGN(handover.engine_id, required_name(params, "remote_engine_id"));
  TANDEM_ASSIGN(handover.host, required_name(params, "remote_host"));
  TANDEM_ASSIGN(const std::int64_t port, required_int(params, "remote_port", "remote_port", 1, 65535));
  handover.port = static_cast<std::uint16_t>(port);
  TANDEM_ASSIGN(handover.blocks, required_blocks(params));
  Result<std::optional<std::int64_t>> last_token = json_int(params, "last_token_id");
  if (!last_token) return last_token.error().context("kv_transfer_params");
  if (*last_token && **last_token >= 0 && **last_token <= kInt32) {
    handover.last_token = static_cast<std::int32_t>(**last_token);
  }
  TANDEM_ASSIGN(handover.lease, lease_from(member));
  TANDEM_ASSIGN(handover.prompt_hash, required_hex(member, "prompt_hash", "tandem.prompt_hash"));
  TANDEM_ASSIGN(const std::int64_t block_size, required_int(member, "block_size", "tandem.block_size", 1, 1 << 16));
  handover.block_size = static_cast<std::int32_t>(block_size);
  const std::int64_t most = static_cast<std::int64_t>(handover.blocks.size()) * block_size;
  TANDEM_ASSIGN(handover.num_tokens, required_int(member, "num_tokens", "tandem.num_tokens", 0, most));
  TANDEM_ASSIGN(const std::int64_t tp_size, required_int(member, "tp_size", "tandem.tp_size", 1, 1 << 16));
  handover.tp_size = static_cast<std::int32_t>(tp_size);
  if (port + tp_size - 1 > 65535) {
    return wrong_param("remote_port", std::to_string(port), fmt::format("room for {} ranks below 65536", tp_size));
  }
  return handover;
}

}  // namespace

json::object to_json(const Handover& handover) {
  json::object member;
  member["lease"] = fmt::format("{:x}-{:x}", handover.lease.incarnation, handover.lease.id);
  member["num_tokens"] = handover.num_tokens;
  member["prompt_hash"] = fmt::format("{:016x}", handover.prompt_hash);
  member["block_size"] = handover.block_size;
  member["tp_size"] = handover.tp_size;
  json::object params;
  params["do_remote_prefill"] = true;
  params["do_remote_decode"] = false;
  params["remote_block_ids"] = blocks_to_json(handover.blocks);
  params["remote_engine_id"] = handover.engine_id;
  params["remote_host"] = handover.host;
  params["remote_port"] = std::int64_t{handover.port};  // signed, as a parser would give it
  params["last_token_id"] = handover.last_token;
  params["tandem"] = std::move(member);
  return params;
}

Result<std::optional<Handover>> handover_from_json(const json::object& params) {
  TANDEM_ASSIGN(const bool wanted, flag(params, "do_remote_prefill"));
  if (!wanted) return std::optional<Handover>();
  TANDEM_ASSIGN(const json::object* member, tandem_member(params));
  if (member == nullptr) return std::optional<Handover>();
  TANDEM_ASSIGN(Handover handover, parse(params, *member));
  return std::optional<Handover>(std::move(handover));
}

}  // namespace tandem::transfer

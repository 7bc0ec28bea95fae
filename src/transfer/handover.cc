// SPDX-License-Identifier: Apache-2.0
// The JSON form of a hand-over. 64-bit ids travel as hexadecimal strings: proxies in languages whose numbers are
// doubles would round them.
#include "transfer/handover.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <limits>
#include <string_view>

#include "base/json.h"

namespace tandem::transfer {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxBlocks = std::size_t{1} << 22;
constexpr std::size_t kMaxName = 1024;

Status wrong(std::string_view field, std::string_view found, std::string_view expected) {
  return Status(Code::kInvalidArgument,
                fmt::format("kv_transfer_params.{} is {}, expected {}; send the prefiller's object unchanged", field,
                            found, expected));
}

/// The member's value or an error that it is missing.
template <class T>
Result<T> required(Result<std::optional<T>> value, std::string_view field, std::string_view expected) {
  if (!value) return value.error().context("kv_transfer_params");
  if (!value->has_value()) return wrong(field, "missing", expected);
  return std::move(**value);
}

Result<std::int64_t> required_int(const json::object& object, std::string_view key, std::string_view field,
                                  std::int64_t lowest, std::int64_t highest) {
  const std::string expected = fmt::format("an integer from {} to {}", lowest, highest);
  TANDEM_ASSIGN(const std::int64_t number, required(json_int(object, key), field, expected));
  if (number < lowest || number > highest) return wrong(field, std::to_string(number), expected);
  return number;
}

Result<std::string> required_name(const json::object& object, std::string_view key) {
  TANDEM_ASSIGN(std::string name, required(json_string(object, key), key, "a string"));
  if (name.empty() || name.size() > kMaxName) {
    return wrong(key, fmt::format("a string of {} bytes", name.size()), fmt::format("1 to {} bytes", kMaxName));
  }
  return name;
}

bool parse_hex(std::string_view text, std::uint64_t& value) {
  if (text.empty() || text.size() > 16) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size();
}

Result<LeaseId> lease_from(const json::object& member) {
  constexpr std::string_view kForm = "\"<hex incarnation>-<hex id>\"";
  TANDEM_ASSIGN(const std::string text, required(json_string(member, "lease"), "tandem.lease", kForm));
  const std::size_t dash = text.find('-');
  LeaseId lease;
  if (text.size() > 33 || dash == std::string::npos ||
      !parse_hex(std::string_view(text).substr(0, dash), lease.incarnation) ||
      !parse_hex(std::string_view(text).substr(dash + 1), lease.id)) {
    return wrong("tandem.lease", fmt::format("\"{}\"", text.substr(0, 40)), kForm);
  }
  return lease;
}

Result<std::uint64_t> prompt_hash_from(const json::object& member) {
  constexpr std::string_view kForm = "1 to 16 hex digits";
  TANDEM_ASSIGN(const std::string text, required(json_string(member, "prompt_hash"), "tandem.prompt_hash", kForm));
  std::uint64_t hash = 0;
  if (!parse_hex(text, hash)) return wrong("tandem.prompt_hash", fmt::format("\"{}\"", text.substr(0, 40)), kForm);
  return hash;
}

Result<std::vector<kv::BlockId>> blocks_from(const json::object& params) {
  constexpr std::string_view kForm = "an array of block ids from 0 to 2147483647";
  const json::value* value = params.if_contains("remote_block_ids");
  if (value == nullptr || !value->is_array()) return wrong("remote_block_ids", "not an array", kForm);
  const json::array& array = value->get_array();
  if (array.size() > kMaxBlocks) {
    return wrong("remote_block_ids", fmt::format("{} entries", array.size()), fmt::format("at most {}", kMaxBlocks));
  }
  std::vector<kv::BlockId> blocks;
  blocks.reserve(array.size());
  for (const json::value& entry : array) {
    boost::system::error_code error;
    const auto id = entry.to_number<std::int64_t>(error);
    if (error || id < 0 || id > std::numeric_limits<kv::BlockId>::max()) {
      return wrong(fmt::format("remote_block_ids[{}]", blocks.size()), "not a block id", kForm);
    }
    blocks.push_back(static_cast<kv::BlockId>(id));
  }
  return blocks;
}

Result<Handover> parse(const json::object& params, const json::object& member) {
  constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();
  Handover handover;
  TANDEM_ASSIGN(handover.engine_id, required_name(params, "remote_engine_id"));
  TANDEM_ASSIGN(handover.host, required_name(params, "remote_host"));
  TANDEM_ASSIGN(const std::int64_t port, required_int(params, "remote_port", "remote_port", 1, 65535));
  handover.port = static_cast<std::uint16_t>(port);
  TANDEM_ASSIGN(handover.blocks, blocks_from(params));
  Result<std::optional<std::int64_t>> last_token = json_int(params, "last_token_id");
  if (!last_token) return last_token.error().context("kv_transfer_params");
  if (*last_token && **last_token >= 0 && **last_token <= kInt32) {
    handover.last_token = static_cast<std::int32_t>(**last_token);
  }
  TANDEM_ASSIGN(handover.lease, lease_from(member));
  TANDEM_ASSIGN(handover.prompt_hash, prompt_hash_from(member));
  TANDEM_ASSIGN(const std::int64_t block_size, required_int(member, "block_size", "tandem.block_size", 1, 1 << 16));
  handover.block_size = static_cast<std::int32_t>(block_size);
  const std::int64_t most = static_cast<std::int64_t>(handover.blocks.size()) * block_size;
  TANDEM_ASSIGN(handover.num_tokens, required_int(member, "num_tokens", "tandem.num_tokens", 0, most));
  TANDEM_ASSIGN(const std::int64_t tp_size, required_int(member, "tp_size", "tandem.tp_size", 1, 1 << 16));
  handover.tp_size = static_cast<std::int32_t>(tp_size);
  if (port + tp_size - 1 > 65535) {
    return wrong("remote_port", std::to_string(port), fmt::format("room for {} ranks below 65536", tp_size));
  }
  return handover;
}

}  // namespace

json::object to_json(const Handover& handover) {
  json::array blocks;
  blocks.reserve(handover.blocks.size());
  for (const kv::BlockId block : handover.blocks) blocks.emplace_back(block);
  json::object member;
  member["lease"] = fmt::format("{:x}-{:x}", handover.lease.incarnation, handover.lease.id);
  member["num_tokens"] = handover.num_tokens;
  member["prompt_hash"] = fmt::format("{:016x}", handover.prompt_hash);
  member["block_size"] = handover.block_size;
  member["tp_size"] = handover.tp_size;
  json::object params;
  params["do_remote_prefill"] = true;
  params["do_remote_decode"] = false;
  params["remote_block_ids"] = std::move(blocks);
  params["remote_engine_id"] = handover.engine_id;
  params["remote_host"] = handover.host;
  params["remote_port"] = std::int64_t{handover.port};  // signed, as a parser would give it
  params["last_token_id"] = handover.last_token;
  params["tandem"] = std::move(member);
  return params;
}

Result<std::optional<Handover>> handover_from_json(const json::object& params) {
  Result<std::optional<bool>> flag = json_bool(params, "do_remote_prefill");
  if (!flag) return flag.error().context("kv_transfer_params");
  if (!flag->value_or(false)) return std::optional<Handover>();
  const json::value* member = params.if_contains("tandem");
  if (member == nullptr || member->is_null()) return std::optional<Handover>();
  if (!member->is_object()) return wrong("tandem", "not an object", "an object");
  TANDEM_ASSIGN(Handover handover, parse(params, member->get_object()));
  return std::optional<Handover>(std::move(handover));
}

}  // namespace tandem::transfer

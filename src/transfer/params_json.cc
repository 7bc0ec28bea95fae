// SPDX-License-Identifier: Apache-2.0
#include "transfer/params_json.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "base/json.h"

namespace tandem::transfer {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxBlocks = std::size_t{1} << 22;
constexpr std::size_t kMaxName = 1024;

/// The member's value or an error that it is missing.
template <class T>
Result<T> required(Result<std::optional<T>> value, std::string_view field, std::string_view expected) {
  if (!value) return value.error().context("kv_transfer_params");
  if (!value->has_value()) return wrong_param(field, "missing", expected);
  return std::move(**value);
}

}  // namespace

Status wrong_param(std::string_view field, std::string_view found, std::string_view expected) {
  return Status(Code::kInvalidArgument,
                fmt::format("kv_transfer_params.{} is {}, expected {}; pass the other instance's object on unchanged",
                            field, found, expected));
}

Result<std::int64_t> required_int(const json::object& object, std::string_view key, std::string_view field,
                                  std::int64_t lowest, std::int64_t highest) {
  const std::string expected = fmt::format("an integer from {} to {}", lowest, highest);
  TANDEM_ASSIGN(const std::int64_t number, required(json_int(object, key), field, expected));
  if (number < lowest || number > highest) return wrong_param(field, std::to_string(number), expected);
  return number;
}

Result<std::string> required_text(const json::object& object, std::string_view key, std::string_view field,
                                  std::string_view expected) {
  return required(json_string(object, key), field, expected);
}

Result<std::string> required_name(const json::object& object, std::string_view key) {
  TANDEM_ASSIGN(std::string name, required_text(object, key, key, "a string"));
  if (name.empty() || name.size() > kMaxName) {
    return wrong_param(key, fmt::format("a string of {} bytes", name.size()), fmt::format("1 to {} bytes", kMaxName));
  }
  return name;
}

bool parse_hex(std::string_view text, std::uint64_t& value) {
  if (text.empty() || text.size() > 16) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + text.size();
}

Result<std::uint64_t> required_hex(const json::object& object, std::string_view key, std::string_view field) {
  constexpr std::string_view kForm = "1 to 16 hex digits";
  TANDEM_ASSIGN(const std::string text, required_text(object, key, field, kForm));
  std::uint64_t value = 0;
  if (!parse_hex(text, value)) return wrong_param(field, fmt::format("\"{}\"", text.substr(0, 40)), kForm);
  return value;
}

Result<std::vector<kv::BlockId>> required_blocks(const json::object& params) {
  constexpr std::string_view kForm = "an array of block ids from 0 to 2147483647";
  const json::value* value = params.if_contains("remote_block_ids");
  if (value == nullptr || !value->is_array()) return wrong_param("remote_block_ids", "not an array", kForm);
  const json::array& array = value->get_array();
  if (array.size() > kMaxBlocks) {
    return wrong_param("remote_block_ids", fmt::format("{} entries", array.size()),
                       fmt::format("at most {}", kMaxBlocks));
  }
  std::vector<kv::BlockId> blocks;
  blocks.reserve(array.size());
  for (const json::value& entry : array) {
    boost::system::error_code error;
    const auto id = entry.to_number<std::int64_t>(error);
    if (error || id < 0 || id > std::numeric_limits<kv::BlockId>::max()) {
      return wrong_param(fmt::format("remote_block_ids[{}]", blocks.size()), "not a block id", kForm);
    }
    blocks.push_back(static_cast<kv::BlockId>(id));
  }
  return blocks;
}

json::array blocks_to_json(const std::vector<kv::BlockId>& blocks) {
  json::array array;
  array.reserve(blocks.size());
  for (const kv::BlockId block : blocks) array.emplace_back(block);
  return array;
}

Result<const json::object*> tandem_member(const json::object& params) {
  const json::value* member = params.if_contains("tandem");
  if (member == nullptr || member->is_null()) return static_cast<const json::object*>(nullptr);
  if (!member->is_object()) return wrong_param("tandem", "not an object", "an object");
  return &member->get_object();
}

Result<bool> flag(const json::object& params, std::string_view key) {
  Result<std::optional<bool>> value = json_bool(params, key);
  if (!value) return value.error().context("kv_transfer_params");
  return value->value_or(false);
}

}  // namespace tandem::transfer

// SPDX-License-Identifier: Apache-2.0
// What hand-overs and deliveries have in common as JSON (`kv_transfer_params`): members that are read strictly, each
// error naming the member, what was found and what was expected. 64-bit ids travel as hexadecimal strings: proxies in
// languages whose numbers are doubles would round them.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace tandem::transfer {

Status wrong_param(std::string_view field, std::string_view found, std::string_view expected);

/// `field` is the member's full name for messages, `key` its name in `object`.
Result<std::int64_t> required_int(const boost::json::object& object, std::string_view key, std::string_view field,
                                  std::int64_t lowest, std::int64_t highest);
Result<std::string> required_text(const boost::json::object& object, std::string_view key, std::string_view field,
                                  std::string_view expected);
/// 1 to 1024 bytes.
Result<std::string> required_name(const boost::json::object& object, std::string_view key);
/// 1 to 16 hexadecimal digits.
Result<std::uint64_t> required_hex(const boost::json::object& object, std::string_view key, std::string_view field);
bool parse_hex(std::string_view text, std::uint64_t& value);
/// The member remote_block_ids.
Result<std::vector<kv::BlockId>> required_blocks(const boost::json::object& params);
boost::json::array blocks_to_json(const std::vector<kv::BlockId>& blocks);
/// Our own member "tandem"; nullptr if there is none (a foreign instance's object).
Result<const boost::json::object*> tandem_member(const boost::json::object& params);
/// False unless it is there and true.
Result<bool> flag(const boost::json::object& params, std::string_view key);

}  // namespace tandem::transfer

// SPDX-License-Identifier: Apache-2.0
#include "api/parsers/call_reader.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

namespace tandem::api {
namespace {

/// The string that JSON text stands for.
std::optional<std::string> decoded_string(std::string_view quoted) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(quoted, error);
  if (error || !value.is_string()) return std::nullopt;
  return std::string(value.as_string());
}

}  // namespace

CallReader::State CallReader::push(char next) {
  const bool was_key = json_.in_key();
  const bool was_number = json_.in_number() && json_.depth() == 1;  // itself the value, not inside it
  const std::size_t old_depth = json_.depth();
  if (!json_.push(next)) return State::kMalformed;
  if (old_depth == 0 && (json_.in_scalar() || next == '[')) return State::kMalformed;  // no object

  if (json_.depth() == 1 && (was_key || json_.in_key())) {
    if (!was_key) text_.clear();
    text_ += next;
    if (!json_.in_key()) {
      const auto key = decoded_string(text_);
      if (!key) return State::kMalformed;
      member_ = member_of(*key);
      const bool again = (member_ == Member::kName && has_name_) || (member_ == Member::kArguments && has_arguments_);
      if (again) return State::kMalformed;
    }
    return State::kOpen;
  }
  const bool now_in_value = json_.depth() > 1 || (json_.depth() == 1 && json_.in_scalar());
  if (now_in_value && !in_value_) begin_value();
  // What ends a number is not part of it.
  const bool belongs = now_in_value || (in_value_ && !was_number);
  if (belongs && member_ == Member::kName) text_ += next;
  if (belongs && member_ == Member::kArguments) arguments_ += next;
  const bool ended = in_value_ && !now_in_value;
  in_value_ = now_in_value;
  if (ended && !end_value()) return State::kMalformed;
  if (!json_.complete()) return State::kOpen;
  return has_name_ ? State::kComplete : State::kMalformed;
}

CallReader::Member CallReader::member_of(std::string_view key) const {
  if (key == "name") return Member::kName;
  const bool arguments = std::find(arguments_keys_.begin(), arguments_keys_.end(), key) != arguments_keys_.end();
  return arguments ? Member::kArguments : Member::kOther;
}

void CallReader::begin_value() {
  in_value_ = true;
  text_.clear();
  if (member_ == Member::kArguments) has_begun_arguments_ = true;
}

bool CallReader::end_value() {
  if (member_ == Member::kArguments) has_arguments_ = true;
  if (member_ != Member::kName) return true;
  const auto name = decoded_string(text_);
  if (!name) return false;
  name_ = *name;
  has_name_ = true;
  return true;
}

}  // namespace tandem::api

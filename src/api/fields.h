// SPDX-License-Identifier: Apache-2.0
// Members of a request's JSON object, with the lenient coercions of vllm_api.md 5.1 and validation errors that name the
// member. Absent and null are the same: nullopt.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/refusal.h"
#include "api/request_schema.h"

namespace tandem::api {

class Fields {
 public:
  /// Parts of a body.
  explicit Fields(const boost::json::object& object) : object_(object) {}
  /// A whole body, of which only listed members may be read: whatever is read is in /openapi.json.
  Fields(const boost::json::object& object, Schema schema) : object_(object), schema_(schema) {}

  const boost::json::object& object() const { return object_; }
  /// Whether the endpoint has such a member; what others have is ignored.
  bool lists(std::string_view name) const { return api::lists(schema_, name); }
  /// nullptr if absent or null.
  const boost::json::value* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  Outcome<std::optional<std::int64_t>> integer(std::string_view name) const;
  Outcome<std::optional<double>> real(std::string_view name) const;
  Outcome<std::optional<std::string>> text(std::string_view name) const;
  Outcome<bool> boolean(std::string_view name, bool fallback) const;
  /// Whole numbers in [low, high].
  Outcome<std::optional<std::int32_t>> int32(std::string_view name) const;
  /// A list of token ids (any int32).
  Outcome<std::optional<std::vector<std::int32_t>>> token_ids(std::string_view name) const;

 private:
  void check_listed(std::string_view name) const;

  const boost::json::object& object_;
  Schema schema_;
};

/// One whole number that fits 32 bits; a text is none, as in a list of prompts.
std::optional<std::int32_t> int32_of(const boost::json::value& value);

/// Checks the media type, parses, and wants an object.
Outcome<boost::json::object> read_json_body(const net::HttpRequest& request);

}  // namespace tandem::api

// SPDX-License-Identifier: Apache-2.0
#include "api/json_style.h"

#include <boost/json.hpp>
#include <utility>

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr const char* kCompilerOptions = "x-guidance";

void close_objects(json::value& schema) {
  if (json::array* list = schema.if_array())
    for (json::value& each : *list) close_objects(each);
  json::object* object = schema.if_object();
  if (object == nullptr) return;
  for (auto& member : *object) close_objects(member.value());
  if (object->contains("properties") && !object->contains("additionalProperties"))
    (*object)["additionalProperties"] = false;
}

}  // namespace

json::value in_style(json::value schema, const JsonStyle& style) {
  if (style.disable_additional_properties) close_objects(schema);
  // Any JSON at all has blanks too.
  if (schema.is_bool() && schema.get_bool()) schema = json::object();
  json::object* object = schema.if_object();
  if (object == nullptr) return schema;
  object->stable_erase(kCompilerOptions);  // not for clients to set
  json::object options;
  if (style.disable_any_whitespace) options["whitespace_flexible"] = false;
  if (style.whitespace_pattern) options["whitespace_pattern"] = *style.whitespace_pattern;
  options["coerce_one_of"] = true;  // a grammar cannot tell whether others match too
  (*object)[kCompilerOptions] = std::move(options);
  return schema;
}

}  // namespace tandem::api

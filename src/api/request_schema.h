// SPDX-License-Identifier: Apache-2.0
// The members of each endpoint's JSON body: what /openapi.json tells and what the readers may ask for. Fields refuses,
// in builds with assertions, to read a member that is not listed, so that neither list runs away from the other.
#pragma once

#include <span>
#include <string_view>

namespace tandem::api {

enum class FieldType { kAny, kBoolean, kInteger, kNumber, kString, kArray, kObject };

struct FieldDoc {
  std::string_view name;
  FieldType type = FieldType::kAny;
  std::string_view what = {};  ///< empty where the name says it
};

using Schema = std::span<const FieldDoc>;

Schema completion_schema();
Schema chat_schema();
Schema tokenize_schema();
Schema detokenize_schema();
Schema release_schema();

bool lists(Schema schema, std::string_view name);

}  // namespace tandem::api

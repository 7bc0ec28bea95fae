// SPDX-License-Identifier: Apache-2.0
#include "api/kv_params.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr std::string_view kMember = "kv_transfer_params";
constexpr std::string_view kFurtherPrompts = "tandem_prompts";
constexpr std::size_t kMaxPrompts = 4096;

Refusal malformed(std::string_view what) {
  return bad_request(fmt::format("{} is malformed: {}", kMember, what), std::string(kMember));
}

}  // namespace

Outcome<KvParams> read_kv_params(const Fields& body) {
  KvParams params;
  const json::value* value = body.find(kMember);
  if (value == nullptr) return params;
  if (!value->is_object()) return validation_error("dict_type", kMember, "Input should be a valid dictionary");
  const Fields fields(value->as_object());
  TANDEM_ASSIGN(params.remote_decode, fields.boolean("do_remote_decode", false));
  TANDEM_ASSIGN(const bool remote_prefill, fields.boolean("do_remote_prefill", false));
  if (!remote_prefill) return params;
  auto first = transfer::handover_from_json(fields.object());
  if (!first) return malformed(first.error().message());
  if (!*first) return params;  // a foreign prefiller's: we cannot fetch it and prefill ourselves
  params.remote_prefill.push_back(std::move(*first));
  const json::value* further = fields.find(kFurtherPrompts);
  if (further == nullptr) return params;
  if (!further->is_array() || further->as_array().size() > kMaxPrompts)
    return malformed("tandem_prompts is not a list");
  for (const json::value& element : further->as_array()) {
    if (element.is_null()) {
      params.remote_prefill.emplace_back();
      continue;
    }
    if (!element.is_object()) return malformed("tandem_prompts holds something else than objects");
    auto handover = transfer::handover_from_json(element.as_object());
    if (!handover) return malformed(handover.error().message());
    params.remote_prefill.push_back(std::move(*handover));
  }
  return params;
}

std::string kv_params_json(std::span<const std::optional<transfer::Handover>> handovers) {
  if (handovers.empty() || !handovers.front()) return "null";
  json::object first = transfer::to_json(*handovers.front());
  if (handovers.size() > 1) {
    json::array further;
    for (const auto& handover : handovers.subspan(1)) {
      if (handover)
        further.emplace_back(transfer::to_json(*handover));
      else
        further.emplace_back(nullptr);
    }
    first[kFurtherPrompts] = std::move(further);
  }
  return std::string(json::serialize(first));
}

}  // namespace tandem::api

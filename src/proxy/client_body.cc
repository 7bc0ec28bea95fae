// SPDX-License-Identifier: Apache-2.0
#include "proxy/client_body.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/json.h"

namespace tandem::proxy {
namespace {

// `aborted_request` is for instances of the rc2 age; others ignore it.
constexpr std::string_view kPrefillParams =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,)"
    R"("remote_host":null,"remote_port":null,"aborted_request":[]})";

/// In the words of an instance, which never gets this body to see.
Status not_usable(std::string_view text, const Status& error) {
  constexpr std::string_view kForm = "[{{'type': '{}', 'loc': ('body',), 'msg': '{}'}}]";
  if (parse_json(text)) {
    return Status(Code::kInvalidArgument,
                  fmt::format(kForm, "model_attributes_type",
                              "Input should be a valid dictionary or object to extract fields from"));
  }
  return Status(Code::kInvalidArgument,
                fmt::format(kForm, "json_invalid", fmt::format("JSON decode error: {}", error.message())));
}

JsonMembers one_token(JsonMembers members, std::string_view params) {
  members.remove("stream_options");
  members.set("stream", "false");
  members.set("max_tokens", "1");
  members.set("min_tokens", "1");
  for (const char* name : {"max_completion_tokens", "n"}) {
    if (members.find(name)) members.set(name, "1");
  }
  members.set("kv_transfer_params", params);
  return members;
}

}  // namespace

Result<ClientBody> ClientBody::parse(std::string_view text) {
  ClientBody body;
  body.num_bytes_ = text.size();
  auto members = JsonMembers::parse(text);
  if (!members) return not_usable(text, members.error());
  body.members_ = std::move(*members);
  body.members_.remove("kv_transfer_params");
  return body;
}

std::string ClientBody::for_prefill() const { return one_token(members_, kPrefillParams).text(); }

std::vector<std::string> ClientBody::prompts() const {
  const auto raw = members_.find("prompt");
  if (!raw) return {};
  std::vector<std::string> prompts;
  for (const auto element : json_elements(*raw)) {
    // A list of numbers is one prompt.
    if (!element.starts_with('"') && !element.starts_with('[')) return {std::string(*raw)};
    prompts.emplace_back(element);
  }
  if (prompts.empty()) prompts.emplace_back(*raw);
  return prompts;
}

std::string ClientBody::for_push(std::string_view prompt, std::string_view params) const {
  JsonMembers members = one_token(members_, params);
  if (!prompt.empty()) members.set("prompt", prompt);
  return members.text();
}

std::string ClientBody::for_decode(std::string_view params) const {
  if (params.empty()) return members_.text();
  JsonMembers members = members_;
  members.set("kv_transfer_params", params);
  return members.text();
}

Result<std::string> kv_params_of(std::string_view prefill_answer) {
  auto members = JsonMembers::parse(prefill_answer);
  if (!members) return members.error().context("the prefiller's answer");
  const auto raw = members->find("kv_transfer_params");
  if (!raw || !raw->starts_with('{')) return std::string();
  TANDEM_ASSIGN(const auto params, JsonMembers::parse(*raw));
  if (params.text() == "{}") return std::string();
  return std::string(*raw);
}

}  // namespace tandem::proxy

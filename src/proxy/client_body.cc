// SPDX-License-Identifier: Apache-2.0
#include "proxy/client_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/json.h"

namespace tandem::proxy {
namespace {

// `aborted_request` is for instances of the rc2 age; others ignore it.
constexpr std::string_view kPrefillParams =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,)"
    R"("remote_host":null,"remote_port":null,"aborted_request":[])";

/// What the client asked for where a prefiller gets something else: it refuses what a decoder would refuse, in the same
/// words, before it computes anything.
std::string prefill_params(const JsonMembers& members) {
  JsonMembers client;
  for (const char* name : {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n"})
    if (const auto value = members.find(name)) client.set(name, *value);
  return std::string(kPrefillParams) + ",\"tandem_client\":" + client.text() + "}";
}

/// In the words of an instance, which never gets this body to see.
Status not_usable(std::string_view text) {
  if (!check_json(text)) return {Code::kInvalidArgument, json_invalid_message(text)};
  return {
      Code::kInvalidArgument,
      "[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to "
      "extract fields from'}]"};
}

std::optional<ClientBody::Fault> fault_of_params(std::string_view raw) {
  const auto fault = [](std::string_view type, std::string_view name, std::string_view what) {
    return ClientBody::Fault{fmt::format("[{{'type': '{}', 'loc': ('body', '{}'), 'msg': '{}'}}]", type, name, what),
                             std::string(name)};
  };
  const auto params = parse_json(raw);
  if (params && params->is_null()) return std::nullopt;
  if (!params || !params->is_object())
    return fault("dict_type", "kv_transfer_params", "Input should be a valid dictionary");
  for (const char* flag : {"do_remote_decode", "do_remote_prefill"})
    if (!json_bool(params->get_object(), flag))
      return fault("bool_parsing", flag, "Input should be a valid boolean, unable to interpret input");
  return std::nullopt;
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
  if (!members) return not_usable(text);
  body.members_ = std::move(*members);
  body.fault_ = fault_of_params(body.members_.find("kv_transfer_params").value_or("null"));
  body.members_.remove("kv_transfer_params");
  return body;
}

std::string ClientBody::for_prefill() const { return one_token(members_, prefill_params(members_)).text(); }

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

std::string ClientBody::for_decode(std::string_view params, std::optional<std::uint32_t> seed) const {
  JsonMembers members = members_;
  if (!params.empty()) members.set("kv_transfer_params", params);
  if (seed && stream() && members.find("seed").value_or("null") == "null") members.set("seed", std::to_string(*seed));
  return members.text();
}

std::string ClientBody::request_id() const {
  constexpr std::size_t kMostBytes = 4096;
  const auto raw = members_.find("request_id");
  if (!raw || raw->size() > kMostBytes) return {};
  const auto value = parse_json(*raw);
  if (!value || !value->is_string()) return {};
  std::string id(value->get_string());
  const bool fits = std::none_of(id.begin(), id.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return fits ? id : std::string();
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

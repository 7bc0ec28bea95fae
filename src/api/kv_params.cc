// SPDX-License-Identifier: Apache-2.0
#include "api/kv_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "api/context.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr std::string_view kMember = "kv_transfer_params";
constexpr std::string_view kFurtherPrompts = "tandem_prompts";
constexpr std::size_t kMaxPrompts = 4096;

Refusal malformed(std::string_view what) {
  return bad_request(fmt::format("{} is malformed: {}", kMember, what), std::string(kMember));
}

/// The prompt that a decoder's request id names: 2 of "cmpl-...-2", 0 of a chat's or of none.
Outcome<std::size_t> prompt_of(const Fields& message) {
  TANDEM_ASSIGN(const auto id, message.text("request_id"));
  if (!id || !id->starts_with("cmpl-")) return std::size_t{0};
  const std::size_t dash = id->rfind('-');
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(id->data() + dash + 1, id->data() + id->size(), index);
  if (error != std::errc() || end != id->data() + id->size() || index >= kMaxPrompts)
    return malformed("request_id does not end in the number of a prompt");
  return index;
}

/// One decoder's message into its place.
Outcome<void> read_delivery(const Fields& message, KvParams& params) {
  auto delivery = transfer::delivery_from_json(message.object());
  if (!delivery) return malformed(delivery.error().message());
  if (!*delivery) return {};
  TANDEM_ASSIGN(const std::size_t prompt, prompt_of(message));
  if (params.push_to.size() <= prompt) params.push_to.resize(prompt + 1);
  params.push_to[prompt] = std::move(*delivery);
  return {};
}

/// do_remote_decode: a decoder's message (push), or only the wish to keep the KV (pull).
Outcome<void> read_remote_decode(const Fields& fields, KvParams& params) {
  TANDEM_TRY(read_delivery(fields, params));
  if (const json::value* batch = fields.find("batch_kv_transfer_params"); batch != nullptr) {
    if (!batch->is_object() || batch->as_object().size() > kMaxPrompts)
      return malformed("batch_kv_transfer_params is not an object");
    for (const auto& [id, message] : batch->as_object()) {
      if (!message.is_object()) return malformed("batch_kv_transfer_params holds something else than objects");
      TANDEM_TRY(read_delivery(Fields(message.as_object()), params));
    }
  }
  if (params.push_to.empty() && fields.has("remote_host"))
    return bad_request("kv_transfer_params asks for a push to a decoder that is not Tandem (no member \"tandem\")",
                       std::string(kMember));
  params.remote_decode = params.push_to.empty();
  return {};
}

/// do_remote_prefill without a hand-over: a decoder is asked first, if there is a metaserver. do_virtual asks for none.
Outcome<void> read_metaserver(const Fields& fields, KvParams& params) {
  TANDEM_ASSIGN(const bool nothing, fields.boolean("do_virtual", false));
  TANDEM_ASSIGN(const auto text, fields.text("metaserver"));
  if (nothing || !text) return {};
  auto url = net::parse_http_url(*text);
  if (!url) return malformed("metaserver: " + url.error().message());
  params.metaserver = std::move(*url);
  return {};
}

/// This server connects where a request says, but only to hosts that the operator allows.
Outcome<void> check_metaserver(const Context& context, const KvParams& kv) {
  const std::vector<std::string>& allowed = context.config.kv_metaserver_hosts;
  if (!kv.metaserver || allowed.empty()) return {};
  const std::string& host = kv.metaserver->endpoint.host;
  if (std::find(allowed.begin(), allowed.end(), host) != allowed.end()) return {};
  return bad_request(fmt::format("the metaserver's host '{}' is not among --kv-metaserver-hosts", host),
                     "kv_transfer_params");
}

/// The deployment is wrong, and nothing that the client could change: as a 4xx it would be passed on as his mistake,
/// and no other instance would be tried.
Refusal misconfigured(std::string message) {
  return Refusal(500, "InternalServerError", std::move(message), "kv_transfer_params");
}

/// A peer must be another engine by name too (both logs would speak of one), and with a rank table one that is in it.
Outcome<void> check_peer(const Context& context, const std::string& engine_id, std::uint64_t incarnation,
                         const std::string& host) {
  const config::KvTransferConfig& kv = *context.config.kv_transfer;
  const TransferInfo& own = context.parts.transfer;
  if (kv.kind != config::KvConnector::kRankTable && engine_id == own.engine_id && incarnation != own.incarnation)
    return misconfigured(fmt::format(
        "Conflict engine id '{}': this instance and the one at {} both have it; give each another engine_id "
        "in --kv-transfer-config",
        engine_id, host));
  if (!kv.peer_hosts.empty() && std::find(kv.peer_hosts.begin(), kv.peer_hosts.end(), host) == kv.peer_hosts.end())
    return misconfigured(
        fmt::format("the KV is handed over by {} (engine '{}'), which is in no row of the rank table {}", host,
                    engine_id, kv.rank_table));
  return {};
}

}  // namespace

Outcome<KvParams> read_kv_params(const Fields& body) {
  KvParams params;
  const json::value* value = body.find(kMember);
  if (value == nullptr) return params;
  if (!value->is_object()) return validation_error("dict_type", kMember, "Input should be a valid dictionary");
  const Fields fields(value->as_object());
  TANDEM_ASSIGN(const bool remote_decode, fields.boolean("do_remote_decode", false));
  TANDEM_ASSIGN(const bool remote_prefill, fields.boolean("do_remote_prefill", false));
  if (remote_decode) TANDEM_TRY(read_remote_decode(fields, params));
  if (!remote_prefill) return params;
  auto first = transfer::handover_from_json(fields.object());
  if (!first) return malformed(first.error().message());
  if (!*first) {  // no prefiller's, or a foreign one's: we cannot fetch it and prefill ourselves
    TANDEM_TRY(read_metaserver(fields, params));
    return params;
  }
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

bool restore_client_limits(const Context& context, json::object& body) {
  json::value* params = body.if_contains("kv_transfer_params");
  const json::value* told =
      params != nullptr && params->is_object() ? params->get_object().if_contains("tandem_client") : nullptr;
  if (told == nullptr || !told->is_object() || !context.produces_kv()) return false;
  const json::object client = told->get_object();
  for (const char* name : {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n"}) {
    if (const json::value* own = client.if_contains(name))
      body[name] = *own;
    else
      body.erase(name);
  }
  return true;
}

Outcome<void> check_partners(const Context& context, const KvParams& kv) {
  TANDEM_TRY(check_metaserver(context, kv));
  for (const auto& handover : kv.remote_prefill)
    if (handover) TANDEM_TRY(check_peer(context, handover->engine_id, handover->lease.incarnation, handover->host));
  for (const auto& to : kv.push_to)
    if (to) TANDEM_TRY(check_peer(context, to->engine_id, to->incarnation, to->host));
  return {};
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

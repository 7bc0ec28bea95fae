// SPDX-License-Identifier: Apache-2.0
#include "api/refusal.h"

#include <fmt/format.h>

#include "api/json_writer.h"
#include "base/utf8.h"

namespace tandem::api {
namespace {

/// Text in quotes, as the field's validation lists have it: single ones, or double ones if the text has single ones.
std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out.push_back('\\');
    out.push_back(c == '\n' ? ' ' : c);
  }
  out.push_back(quote);
  return out;
}

/// A message may quote what was sent, bytes that are no text included.
std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(out, replace_ill_formed_utf8(text));
  return out;
}

std::string_view type_of_status(int status) {
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "GatewayTimeoutError";
    default:
      return status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

/// Only what is wrong with a request, or with the hand-over that it carries, is its sender's mistake. What another
/// instance does not have any more, or has already, is not: a proxy would pass that 4xx on as the answer.
HttpMapping mapping_of(const Status& error) {
  const HttpMapping mapping = http_mapping(error.code());
  const bool of_a_handover = error.scope() == Scope::kTransfer && error.code() == Code::kInvalidArgument;
  if (error.scope() == Scope::kRequest || of_a_handover || mapping.status >= 500) return mapping;
  return http_mapping(Code::kUnavailable);
}

}  // namespace

Refusal::Refusal(const Status& error)
    : status(mapping_of(error).status), type(mapping_of(error).error_type), message(error.message()) {}

Refusal bad_request(std::string message, std::string param) {
  return Refusal(400, "BadRequestError", std::move(message), std::move(param));
}

Refusal validation_error(std::string_view type, std::string_view field, std::string_view message) {
  const std::string place = field.empty() ? "('body',)" : fmt::format("('body', {})", quoted(field));
  return Refusal(400, "BadRequestError",
                 fmt::format("[{{'type': {}, 'loc': {}, 'msg': {}}}]", quoted(type), place, quoted(message)),
                 std::string(field));
}

Refusal value_error(std::string_view rule) {
  return validation_error("value_error", "", fmt::format("Value error, {}", rule));
}

std::string error_body(const Refusal& refusal) {
  JsonWriter writer;
  writer.begin_object().key("error").begin_object();
  writer.key("message").raw(json_text(refusal.message)).member("type", refusal.type);
  if (refusal.param.empty())
    writer.null_member("param");
  else
    writer.member("param", refusal.param);
  writer.member("code", static_cast<std::int64_t>(refusal.status)).end_object().end_object();
  return writer.take();
}

std::string error_event(const Refusal& refusal) {
  return fmt::format("data: {{\"error\": {{\"message\": {}, \"type\": {}, \"param\": {}, \"code\": {}}}}}\n\n",
                     json_text(refusal.message), json_text(refusal.type),
                     refusal.param.empty() ? "null" : json_text(refusal.param), refusal.status);
}

net::HttpResponse error_response(const Refusal& refusal) {
  net::HttpResponse response(refusal.status, "application/json", error_body(refusal));
  if (refusal.status == 503) response.headers.set("Retry-After", "1");
  return response;
}

std::string error_body_for_status(int status, std::string_view message) {
  return error_body(Refusal(status, std::string(type_of_status(status)), std::string(message)));
}

}  // namespace tandem::api

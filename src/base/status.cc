// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace tandem {
namespace {

struct CodeRow {
  Code code;
  std::string_view name;
  HttpMapping http;
};

// One table for what a code means to an HTTP client (spec: vllm_api.md 2).
constexpr CodeRow kCodes[] = {
    {Code::kOk, "ok", {200, "", false}},
    {Code::kInvalidArgument, "invalid_argument", {400, "BadRequestError", false}},
    {Code::kNotFound, "not_found", {404, "NotFoundError", false}},
    {Code::kAlreadyExists, "already_exists", {400, "BadRequestError", false}},
    {Code::kFailedPrecondition, "failed_precondition", {500, "InternalServerError", false}},
    {Code::kResourceExhausted, "resource_exhausted", {503, "ServiceUnavailableError", true}},
    {Code::kUnavailable, "unavailable", {503, "ServiceUnavailableError", true}},
    {Code::kDeadlineExceeded, "deadline_exceeded", {504, "GatewayTimeoutError", true}},
    {Code::kCancelled, "cancelled", {499, "RequestCancelledError", false}},
    {Code::kDataLoss, "data_loss", {500, "InternalServerError", true}},
    {Code::kUnsupported, "unsupported", {400, "BadRequestError", false}},
    {Code::kInternal, "internal", {500, "InternalServerError", true}},
};

const CodeRow& row(Code code) {
  const auto index = static_cast<std::size_t>(code);
  TANDEM_ASSERT(index < std::size(kCodes) && kCodes[index].code == code, "the code table is out of order");
  return kCodes[index];
}

}  // namespace

std::string_view code_name(Code code) { return row(code).name; }

std::string_view scope_name(Scope scope) {
  switch (scope) {
    case Scope::kRequest:
      return "request";
    case Scope::kTransfer:
      return "transfer";
    case Scope::kPeer:
      return "peer";
    case Scope::kDevice:
      return "device";
    case Scope::kProcess:
      return "process";
  }
  return "unknown";
}

HttpMapping http_mapping(Code code) { return row(code).http; }

Status Status::context(std::string_view what) const& {
  Status copy = *this;
  copy.message_ = std::string(what) + ": " + message_;
  return copy;
}

Status Status::with_scope(Scope scope) const& {
  Status copy = *this;
  copy.scope_ = scope;
  return copy;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code_)) + ": " + message_;
}

void assertion_failed(const char* expression, const char* message, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal error: %s does not hold: %s\n", file, line, expression, message);
  std::abort();
}

}  // namespace tandem

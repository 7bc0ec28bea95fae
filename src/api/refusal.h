// SPDX-License-Identifier: Apache-2.0
// Why a request is refused, as an OpenAI client sees it, and Outcome<T>: a value or a Refusal. Spec: vllm_api.md 2.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "net/http_server.h"

namespace tandem::api {

struct Refusal {
  Refusal(int http_status, std::string error_type, std::string text, std::string parameter = {})
      : status(http_status), type(std::move(error_type)), message(std::move(text)), param(std::move(parameter)) {}
  Refusal(const Status& error);  // NOLINT(google-explicit-constructor): by the table in base/status.h

  int status;        ///< HTTP
  std::string type;  ///< "BadRequestError"
  std::string message;
  std::string param;  ///< "" is null
};

/// 400 with a message of our own serving layer.
Refusal bad_request(std::string message, std::string param = {});
/// 400 in the shape of a validation error: the client finds where (`field`, "" is the whole body) and what.
Refusal validation_error(std::string_view type, std::string_view field, std::string_view message);
/// A broken rule between fields: "Value error, ...".
Refusal value_error(std::string_view rule);

/// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_body(const Refusal& refusal);
/// The same as an SSE event, for failures after the head was sent; vLLM writes this one line with blanks.
std::string error_event(const Refusal& refusal);
net::HttpResponse error_response(const Refusal& refusal);
/// For errors that the HTTP server itself makes.
std::string error_body_for_status(int status, std::string_view message);

/// A value or a Refusal; works with TANDEM_TRY and TANDEM_ASSIGN, also on a Result's error.
template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : value_(std::move(value)) {}                // NOLINT(google-explicit-constructor)
  Outcome(Refusal refusal) : refusal_(std::move(refusal)) {}    // NOLINT(google-explicit-constructor)
  Outcome(const Status& status) : refusal_(Refusal(status)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Outcome*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Outcome*>(this)->checked(); }
  const Refusal& error() const { return *refusal_; }

 private:
  T& checked() {
    TANDEM_ASSERT(value_.has_value(), "an Outcome without a value was read");
    return *value_;
  }
  std::optional<T> value_;
  std::optional<Refusal> refusal_;
};

/// Nothing or a Refusal.
template <>
class [[nodiscard]] Outcome<void> {
 public:
  Outcome() = default;
  Outcome(Refusal refusal) : refusal_(std::move(refusal)) {}    // NOLINT(google-explicit-constructor)
  Outcome(const Status& status) : refusal_(Refusal(status)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return !refusal_.has_value(); }
  const Refusal& error() const { return *refusal_; }

 private:
  std::optional<Refusal> refusal_;
};

}  // namespace tandem::api

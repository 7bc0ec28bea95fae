// SPDX-License-Identifier: Apache-2.0
// Errors as values. Status says what failed and what is unusable now; Result<T> is a value or a Status.
//
// Rules of use (docs/architecture.md, "Errors"):
//  * Anything a user, a file or a peer can cause is a Status; TANDEM_ASSERT is for our own invariants only.
//  * The message names what was asked, what was found and what was expected, and says what to do.
//  * Exceptions never cross a part's boundary; third-party throws are caught where the library is called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

/// What went wrong.
enum class Code : std::uint8_t {
  kOk,
  kInvalidArgument,  ///< the input is wrong and will stay wrong
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,  ///< two sides do not fit (handshake, layout)
  kResourceExhausted,   ///< a bound was reached; later may work
  kUnavailable,         ///< a peer or device cannot be reached now
  kDeadlineExceeded,
  kCancelled,
  kDataLoss,  ///< a checksum or generation did not match
  kUnsupported,
  kInternal,  ///< our own fault
};

/// What is unusable now. The engine acts on this, never on the message.
enum class Scope : std::uint8_t { kRequest, kTransfer, kPeer, kDevice, kProcess };

std::string_view code_name(Code code);     ///< "invalid_argument"
std::string_view scope_name(Scope scope);  ///< "request"

/// One row of the table that maps a Code to what an OpenAI client sees.
struct HttpMapping {
  int status;                   ///< HTTP status
  std::string_view error_type;  ///< "type" of the error object
  bool retryable;               ///< whether another instance may be asked instead
};
HttpMapping http_mapping(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  ///< ok
  Status(Code code, std::string message, Scope scope = Scope::kRequest, const char* file = __builtin_FILE(),
         int line = __builtin_LINE())
      : code_(code), scope_(scope), line_(line), file_(file), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  Scope scope() const { return scope_; }
  const std::string& message() const { return message_; }
  const char* file() const { return file_; }
  int line() const { return line_; }

  /// Puts "what: " before the message: the caller adds which file, flag or peer it was.
  Status context(std::string_view what) const&;
  Status with_scope(Scope scope) const&;
  /// "invalid_argument: message"
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  Scope scope_ = Scope::kRequest;
  int line_ = 0;
  const char* file_ = "";
  std::string message_;
};

[[noreturn]] void assertion_failed(const char* expression, const char* message, const char* file, int line);

/// For our own invariants only; always on. Never on anything a peer, a file or a user sent.
#define TANDEM_ASSERT(condition, message) \
  ((condition) ? void(0) : ::tandem::assertion_failed(#condition, message, __FILE__, __LINE__))

/// A value or a Status. Member names follow std::expected.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    TANDEM_ASSERT(!status_.ok(), "a Result without a value needs an error");
  }

  bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }
  template <class U>
  T value_or(U&& other) const& {
    return value_ ? *value_ : static_cast<T>(std::forward<U>(other));
  }

  const Status& error() const { return status_; }

 private:
  T& checked() {
    TANDEM_ASSERT(value_.has_value(), status_.message().c_str());
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

/// Success or a Status, for functions without a value.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool has_value() const { return status_.ok(); }
  explicit operator bool() const { return status_.ok(); }
  const Status& error() const { return status_; }

 private:
  Status status_;
};

/// Returns the error of a Result from the enclosing function.
#define TANDEM_TRY(expression)                                                                       \
  do {                                                                                               \
    if (auto tandem_try_result = (expression); !tandem_try_result) return tandem_try_result.error(); \
  } while (false)

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)
/// TANDEM_ASSIGN(auto x, f()) declares x from f()'s value or returns f()'s error.
#define TANDEM_ASSIGN(declaration, expression)                                                          \
  auto TANDEM_CONCAT(tandem_assign_, __LINE__) = (expression);                                          \
  if (!TANDEM_CONCAT(tandem_assign_, __LINE__)) return TANDEM_CONCAT(tandem_assign_, __LINE__).error(); \
  declaration = std::move(*TANDEM_CONCAT(tandem_assign_, __LINE__))

}  // namespace tandem

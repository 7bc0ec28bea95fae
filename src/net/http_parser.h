// SPDX-License-Identifier: Apache-2.0
// Incremental HTTP/1.x parsing with limits: bytes in whatever pieces TCP delivers, typed messages out. No I/O, so that
// server, client and fuzz targets run the very same code. Beast is the parser and stays in the .cc file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "net/http_server.h"

namespace tandem::net {

struct ParseError {
  ParseError() {}
  ParseError(int status_code, std::string text) : status(status_code), message(std::move(text)) {}
  int status = 0;  ///< what a server answers: 400, 413, 431, 505
  std::string message;
};

/// Outcome of one feed(): how many bytes were taken from the front; the caller keeps the rest and offers it again
/// together with what arrives next.
struct Fed {
  std::size_t consumed = 0;
  std::optional<ParseError> error;
};

class RequestParser {
 public:
  RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;

  Fed feed(std::string_view bytes);
  bool head_done() const;
  bool done() const;
  /// Valid once the head is done.
  bool expects_continue() const;
  bool keep_alive() const;
  bool http_1_0() const;
  /// The whole request, once done. `peer` is left to the caller. An error if path or target are malformed (400).
  std::optional<ParseError> take(HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class ResponseParser {
 public:
  /// `answers_head`: the request was HEAD, so no body follows whatever the header says.
  ResponseParser(std::size_t max_header_bytes, bool answers_head);
  ~ResponseParser();
  ResponseParser(ResponseParser&&) noexcept;

  Fed feed(std::string_view bytes);
  /// The peer closed. An error if the message is not complete by that.
  std::optional<ParseError> finish();
  bool head_done() const;
  bool done() const;
  bool keep_alive() const;
  int status() const;
  Headers headers() const;
  /// Body bytes decoded since the last call, byte for byte.
  std::string take_body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "Not Found" for 404; "Unknown" for a status without a name.
std::string_view reason_phrase(int status);

/// Decodes %XX; nullopt if an escape is broken or decodes to NUL.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace tandem::net

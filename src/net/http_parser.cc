// SPDX-License-Identifier: Apache-2.0
#include "net/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/status.hpp>

namespace tandem::net {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

/// A string that grows with what arrives. Beast's own string_body reserves what Content-Length claims.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>& length, error_code& error) {
      constexpr std::uint64_t kTrusted = 256U << 10;
      if (length) body_.reserve(static_cast<std::size_t>(std::min(*length, kTrusted)));
      error = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      std::size_t bytes = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers);
           ++it) {
        const boost::asio::const_buffer piece = *it;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
        bytes += piece.size();
      }
      error = {};
      return bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

ParseError describe(const error_code& error) {
  if (error == http::error::body_limit) return ParseError(413, "the request body is larger than this server takes");
  if (error == http::error::header_limit) return ParseError(431, "the header is larger than this server takes");
  if (error == http::error::bad_version) return ParseError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  return ParseError(400, fmt::format("not valid HTTP: {}", error.message()));
}

/// Feeds until everything is taken, the message is done or more bytes are needed.
template <class Parser>
Fed feed_parser(Parser& parser, std::string_view bytes) {
  Fed fed;
  while (fed.consumed < bytes.size() && !parser.is_done()) {
    error_code error;
    const auto rest = bytes.substr(fed.consumed);
    const std::size_t taken = parser.put(boost::asio::buffer(rest.data(), rest.size()), error);
    fed.consumed += taken;
    if (error == http::error::need_more) break;
    if (error) {
      fed.error = describe(error);
      break;
    }
    if (taken == 0) break;
  }
  return fed;
}

template <class Message>
Headers copy_headers(const Message& message) {
  Headers headers;
  for (const auto& field : message) {
    headers.add(std::string(field.name_string().data(), field.name_string().size()),
                std::string(field.value().data(), field.value().size()));
  }
  return headers;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text) {
  const auto nibble = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = nibble(text[i + 1]);
    const int low = nibble(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::string_view reason_phrase(int status) {
  const auto phrase = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(std::max(status, 0))));
  if (phrase.empty() || phrase == "<unknown-status>") return "Unknown";
  return {phrase.data(), phrase.size()};
}

struct RequestParser::Impl {
  http::request_parser<GrowingBody> parser;
  std::size_t max_header_bytes = 0;
  std::size_t max_body_bytes = 0;
};

RequestParser::RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->max_header_bytes = max_header_bytes;
  impl_->max_body_bytes = max_body_bytes;
  impl_->parser.eager(true);
  impl_->parser.header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(max_header_bytes, 1U << 30)));
  impl_->parser.body_limit(static_cast<std::uint64_t>(max_body_bytes));
}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;

Fed RequestParser::feed(std::string_view bytes) {
  Fed fed = feed_parser(impl_->parser, bytes);
  if (fed.error && fed.error->status == 413)
    fed.error->message += fmt::format(": at most {} bytes", impl_->max_body_bytes);
  if (fed.error && fed.error->status == 431)
    fed.error->message += fmt::format(": at most {} bytes", impl_->max_header_bytes);
  return fed;
}
bool RequestParser::head_done() const { return impl_->parser.is_header_done(); }
bool RequestParser::done() const { return impl_->parser.is_done(); }
bool RequestParser::keep_alive() const { return impl_->parser.keep_alive(); }
bool RequestParser::http_1_0() const { return impl_->parser.get().version() < 11; }

bool RequestParser::expects_continue() const {
  const auto& message = impl_->parser.get();
  return !http_1_0() && boost::beast::iequals(message[http::field::expect], "100-continue");
}

std::optional<ParseError> RequestParser::take(HttpRequest& request) {
  auto& message = impl_->parser.get();
  std::string_view target(message.target().data(), message.target().size());
  if (target.starts_with("http://") || target.starts_with("https://")) {  // absolute form (RFC 9112, 3.2.2)
    const auto slash = target.find('/', target.find("//") + 2);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  const auto question = target.find('?');
  auto path = percent_decode(target.substr(0, question));
  if (!path || path->empty()) {
    return ParseError(400, fmt::format("the request target '{}' is not a valid path", target.substr(0, 200)));
  }
  request.method.assign(message.method_string().data(), message.method_string().size());
  request.path = std::move(*path);
  request.query = question == std::string_view::npos ? std::string() : std::string(target.substr(question + 1));
  request.headers = copy_headers(message);
  request.body = std::move(message.body());
  return std::nullopt;
}

struct ResponseParser::Impl {
  http::response_parser<GrowingBody> parser;
};

ResponseParser::ResponseParser(std::size_t max_header_bytes, bool answers_head) : impl_(std::make_unique<Impl>()) {
  impl_->parser.eager(true);
  impl_->parser.header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(max_header_bytes, 1U << 30)));
  impl_->parser.body_limit(boost::none);  // taken piece by piece; the caller bounds what it keeps
  impl_->parser.skip(answers_head);
}
ResponseParser::~ResponseParser() = default;
ResponseParser::ResponseParser(ResponseParser&&) noexcept = default;

Fed ResponseParser::feed(std::string_view bytes) { return feed_parser(impl_->parser, bytes); }

std::optional<ParseError> ResponseParser::finish() {
  if (done()) return std::nullopt;
  error_code error;
  impl_->parser.put_eof(error);
  if (error) return describe(error);
  return std::nullopt;
}

bool ResponseParser::head_done() const { return impl_->parser.is_header_done(); }
bool ResponseParser::done() const { return impl_->parser.is_done(); }
bool ResponseParser::keep_alive() const { return impl_->parser.keep_alive(); }
int ResponseParser::status() const { return static_cast<int>(impl_->parser.get().result_int()); }
Headers ResponseParser::headers() const { return copy_headers(impl_->parser.get()); }
std::string ResponseParser::take_body() { return std::exchange(impl_->parser.get().body(), std::string()); }

}  // namespace tandem::net

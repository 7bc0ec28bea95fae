// SPDX-License-Identifier: Apache-2.0
// Raw bytes through the server's parser. The first byte chooses how the rest is cut into pieces; wherever it is cut, a
// request that is accepted must be the same one.
#include <cstdint>
#include <cstdlib>

#include "net/http_parser.h"

namespace {

constexpr std::size_t kMaxHeader = 8U << 10;
constexpr std::size_t kMaxBody = 64U << 10;

struct Outcome {
  bool accepted = false;
  std::size_t consumed = 0;
  tandem::net::HttpRequest request;
};

Outcome parse(std::string_view bytes, std::size_t piece) {
  Outcome outcome;
  tandem::net::RequestParser parser(kMaxHeader, kMaxBody);
  std::string held;
  for (std::size_t at = 0; at < bytes.size() && !parser.done();) {
    const auto more = bytes.substr(at, piece);
    held += more;
    at += more.size();
    const auto fed = parser.feed(held);
    if (fed.consumed > held.size()) std::abort();
    outcome.consumed += fed.consumed;
    held.erase(0, fed.consumed);
    if (fed.error) {
      if (fed.error->status < 400 || fed.error->status > 599) std::abort();
      return outcome;
    }
    if (parser.head_done()) (void)(parser.expects_continue() || parser.keep_alive() || parser.http_1_0());
    if (held.size() > kMaxHeader) return outcome;  // the server refuses what it cannot hold
  }
  if (!parser.done()) return outcome;
  outcome.accepted = !parser.take(outcome.request);
  if (outcome.request.body.size() > kMaxBody) std::abort();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = parse(bytes, bytes.size() + 1);
  const Outcome cut = parse(bytes, 1 + data[0] % 64);
  if (!whole.accepted || !cut.accepted) return 0;
  if (whole.consumed != cut.consumed || whole.request.method != cut.request.method ||
      whole.request.path != cut.request.path || whole.request.body != cut.request.body ||
      whole.request.headers.fields() != cut.request.headers.fields()) {
    std::abort();
  }
  return 0;
}

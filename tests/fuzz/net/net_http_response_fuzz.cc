// SPDX-License-Identifier: Apache-2.0
// Raw bytes through the client's parser, as from a peer that may be anything. The body must not depend on the cuts.
#include <cstdint>
#include <cstdlib>

#include "net/http_parser.h"

namespace {

struct Outcome {
  bool whole = false;
  int status = 0;
  std::string body;
};

Outcome parse(std::string_view bytes, std::size_t piece, bool answers_head) {
  Outcome outcome;
  tandem::net::ResponseParser parser(8U << 10, answers_head);
  std::string held;
  for (std::size_t at = 0; at < bytes.size() && !parser.done();) {
    const auto more = bytes.substr(at, piece);
    held += more;
    at += more.size();
    const auto fed = parser.feed(held);
    if (fed.consumed > held.size()) std::abort();
    held.erase(0, fed.consumed);
    if (fed.error) return outcome;
    outcome.body += parser.take_body();
    if (held.size() > (64U << 10)) return outcome;
  }
  if (!parser.head_done()) return outcome;
  outcome.status = parser.status();
  (void)parser.keep_alive();
  (void)parser.headers();
  outcome.whole = !parser.finish();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool head = (data[0] & 0x80) != 0;
  const Outcome whole = parse(bytes, bytes.size() + 1, head);
  const Outcome cut = parse(bytes, 1 + data[0] % 64, head);
  if (whole.whole && cut.whole && (whole.status != cut.status || whole.body != cut.body)) std::abort();
  if (head && !whole.body.empty()) std::abort();
  return 0;
}

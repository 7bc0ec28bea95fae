// SPDX-License-Identifier: Apache-2.0
// Any bytes, cut anywhere: the raw bytes of all events and the unfinished rest are the input, the events do not depend
// on the cuts, and the boundary tracker agrees with the parser.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "net/sse.h"

namespace {

struct Outcome {
  std::string raw;
  std::vector<std::string> data;
  std::string rest;
};

Outcome parse(std::string_view bytes, std::size_t piece) {
  Outcome outcome;
  tandem::net::SseParser parser(1U << 20);
  tandem::net::SseBoundary boundary;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    parser.feed(bytes.substr(at, piece));
    boundary.feed(bytes.substr(at, piece));
    for (;;) {
      auto event = parser.next();
      if (!event) std::abort();
      if (!*event) break;
      outcome.raw += (*event)->raw;
      if ((*event)->has_data) outcome.data.push_back((*event)->data);
    }
    if (parser.unfinished().empty() && !boundary.between_events()) std::abort();
  }
  outcome.rest = parser.unfinished();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = parse(bytes, bytes.size() + 1);
  const Outcome cut = parse(bytes, 1 + data[0] % 16);
  if (whole.raw + whole.rest != bytes || cut.raw + cut.rest != bytes) std::abort();
  if (whole.data != cut.data) std::abort();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Where the time to the first token went: the header X-Tandem-Timing, "name=seconds;name=seconds;...".
// An instance says it of itself; the proxy puts the two sides and its own part together so that all parts add up to
// what it measured from a request's arrival to the first byte of its answer:
//
//   prefill.<part>, prefill.other   the prefiller's parts, and what its answer took beyond them (network, HTTP)
//   decode.<part>, decode.other     the same of the decoder
//   proxy                           everything else
//
// Layerwise, the prefill happens while the decoder waits for KV: its time is taken out of the decoder's waiting parts
// (and is the decoder's wait at most). A decoder that does not stream answers after its last token: what follows the
// first one is in decode.other.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::proxy {

using TimingParts = std::vector<std::pair<std::string, double>>;

/// What is malformed, negative or over the bound is left out: a header from outside must not break an answer.
TimingParts parse_timing(std::string_view header);

/// One backend's share.
struct StageTime {
  double seconds = 0;  ///< from asking it until its answer (prefiller: whole; decoder: first byte)
  std::string header;  ///< its own X-Tandem-Timing; may be empty
};

/// The header's value. `total`: arrival to first byte. `overlapped`: the prefill ran inside the decoder's time.
std::string combine_timing(double total, const StageTime& prefill, const StageTime& decode, bool overlapped);

}  // namespace tandem::proxy

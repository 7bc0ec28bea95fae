// SPDX-License-Identifier: Apache-2.0
#include "proxy/client_stream.h"

#include <utility>

#include "proxy/forwarding.h"

namespace tandem::proxy {

using End = net::RelayOutcome::End;
using State = StreamTrail::State;

net::Task<net::RelayOutcome> ClientStream::relay(std::unique_ptr<net::ClientResponse> answer, std::string first_piece,
                                                 net::Headers headers, std::function<bool()> may_resume) {
  net::RelayOutcome outcome;
  outcome.end = End::kClientGone;
  if (!std::exchange(begun_, true)) {
    headers.remove("content-length");  // an error event may have to follow
    const auto begun = co_await exchange_->begin_stream(answer->status(), std::move(headers));
    if (!begun) co_return outcome;
  }
  trail_.begin_answer();
  std::string piece = std::move(first_piece);
  while (true) {
    outcome.num_bytes += piece.size();
    std::string fresh;
    const State state = piece.empty() ? trail_.finish(fresh) : trail_.feed(piece, may_resume, fresh);
    if (!fresh.empty()) {
      const auto written = co_await exchange_->write(std::move(fresh));
      if (!written) co_return outcome;
    }
    if (state != State::kGoesOn) {
      differs_ = state == State::kDiffers;
      outcome.end = End::kBroken;
      outcome.error = trail_.why();
      co_return outcome;
    }
    if (piece.empty()) break;
    auto next = co_await answer->read_piece();
    if (exchange_->client_gone()) co_return outcome;
    if (!next) {
      if (trail_.said_done()) break;  // everything was said; only the end of the transfer is missing
      outcome.end = End::kBroken;
      outcome.error = next.error();
      co_return outcome;
    }
    piece = std::move(*next);
  }
  const auto ended = co_await exchange_->end_stream();
  if (ended) outcome.end = End::kComplete;
  co_return outcome;
}

net::Task<void> ClientStream::end_with_error(int status, std::string why) {
  std::string event = error_event(status, why);
  const auto sent = co_await exchange_->write(std::move(event));
  if (sent) (void)co_await exchange_->end_stream();
}

}  // namespace tandem::proxy

// SPDX-License-Identifier: Apache-2.0
// What a client has of an event stream, so that another decoder's answer to the same request can go on where the first
// one broke off: the new answer is followed from its beginning, what the client has is compared and swallowed, and what
// is new is passed on. An instance's tokens depend on the request alone, so the two answers are equal but for ids and
// times; if they are not, nothing of the new one is passed on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/sse.h"

namespace tandem::proxy {

class StreamTrail {
 public:
  enum class State : std::uint8_t {
    kGoesOn,
    kInterrupted,  ///< the instance itself says that it cannot go on: an error event of 5xx, or an abort
    kDiffers,      ///< the answer is not the one that the client has the beginning of
  };

  /// The bytes that follow are the beginning of an answer.
  void begin_answer();
  /// Appends to `out` what of `bytes` the client has not: whole events only, under the ids of the first answer. An
  /// error event is one like others if `may_resume` says no; an abort, which a client may take for an end, is never
  /// passed on.
  State feed(std::string_view bytes, const std::function<bool()>& may_resume, std::string& out);
  /// The answer ended properly: appends what it left without an end. kDiffers: the client had more than that.
  State finish(std::string& out);

  /// Whether the client has got [DONE].
  bool said_done() const { return said_done_; }
  /// After kInterrupted or kDiffers.
  const Status& why() const { return why_; }

 private:
  /// Events of one choice (-1: of none). Choices advance at their own pace, also in another order the second time.
  struct Choice {
    std::uint64_t passed = 0;       ///< events that the client has
    std::uint64_t passed_hash = 0;  ///< over them, without ids and times
    std::uint64_t seen = 0;         ///< of the answer under way
    std::uint64_t seen_hash = 0;
  };
  bool is_abort(std::string_view data);
  bool is_fault(std::string_view data);  ///< an error event of the instance's own doing
  State differs();

  net::SseParser parser_ = make_parser();
  static net::SseParser make_parser();
  std::map<int, Choice> choices_;
  std::string head_;  ///< "data: {"id":...,"created":..." of the first answer's events
  bool first_answer_ = true;
  bool said_done_ = false;
  Status why_;
};

}  // namespace tandem::proxy

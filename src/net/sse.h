// SPDX-License-Identifier: Apache-2.0
// Server-sent events, incremental and bounded: events come out whole whatever the TCP boundaries were, each with the
// raw bytes it was made of. The raw bytes of all events, put together, are the input.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::net {

struct SseEvent {
  std::string raw;        ///< with all its line ends, the empty line included
  std::string data;       ///< "data" fields joined by '\n'
  std::string event;      ///< "event" field
  std::string id;         ///< "id" field
  bool has_data = false;  ///< false for comments (": ping") and stray empty lines
};

/// Lines end with LF, CR LF or CR. A CR that ends the input ends its line at once; a LF that follows later belongs to
/// it and is put before the next event's raw bytes.
class SseParser {
 public:
  explicit SseParser(std::size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  void feed(std::string_view bytes);
  /// The next whole event, nullopt if more bytes are needed, an error if one is larger than allowed.
  Result<std::optional<SseEvent>> next();
  /// What has come of an event that is not complete.
  std::string_view unfinished() const { return std::string_view(buffer_).substr(begin_); }

 private:
  std::size_t max_event_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;    ///< start of the current event in buffer_
  std::size_t scanned_ = 0;  ///< start of the line to look at next, in buffer_
  bool first_ = true;        ///< a byte order mark may come
  bool swallow_lf_ = false;  ///< the last line ended with a CR at the end of the input
};

/// Follows a stream only to know whether it stands between two events. Keeps no bytes.
class SseBoundary {
 public:
  void feed(std::string_view bytes);
  /// True at the start and after an empty line.
  bool between_events() const { return line_is_empty_ && (after_empty_line_ || !any_line_); }
  /// True where a new line begins: what is sent now cannot be glued to a half line.
  bool at_line_start() const { return line_is_empty_; }

 private:
  bool line_is_empty_ = true;
  bool after_empty_line_ = true;
  bool any_line_ = false;
  bool last_was_cr_ = false;
};

}  // namespace tandem::net

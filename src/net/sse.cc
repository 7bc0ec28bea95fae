// SPDX-License-Identifier: Apache-2.0
#include "net/sse.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::net {
namespace {

void apply_line(std::string_view line, SseEvent& event) {
  const auto colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (event.has_data) event.data += '\n';
    event.has_data = true;
    event.data += value;
  } else if (name == "event") {
    event.event = value;
  } else if (name == "id" && value.find('\0') == std::string_view::npos) {
    event.id = value;
  }
}

/// The next CR or LF, npos if there is none. A plain loop: find_first_of() calls memchr() for every character, which
/// is a tenth of what a client of many streams does.
std::size_t find_line_end(std::string_view text, std::size_t from) {
  for (std::size_t at = from; at < text.size(); ++at)
    if (text[at] == '\n' || text[at] == '\r') return at;
  return std::string_view::npos;
}

/// Takes one line off the front of `text`.
std::string_view take_line(std::string_view& text) {
  const auto end = std::min(find_line_end(text, 0), text.size());
  const auto line = text.substr(0, end);
  text.remove_prefix(end);
  if (text.starts_with("\r\n")) {
    text.remove_prefix(2);
  } else if (!text.empty()) {
    text.remove_prefix(1);
  }
  return line;
}

}  // namespace

void SseParser::feed(std::string_view bytes) {
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  buffer_ += bytes;
}

Result<std::optional<SseEvent>> SseParser::next() {
  // A LF left over from a CR LF that was cut apart: part of the raw bytes, but no line of its own.
  if (swallow_lf_ && begin_ < buffer_.size()) {
    swallow_lf_ = false;
    if (buffer_[begin_] == '\n') scanned_ = begin_ + 1;
  }
  for (;;) {
    const auto end = find_line_end(buffer_, scanned_);
    if (end == std::string::npos) break;
    const bool cr_at_end = buffer_[end] == '\r' && end + 1 == buffer_.size();
    const std::size_t next_line = end + (buffer_.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    if (end != scanned_) {
      if (cr_at_end) break;  // not an empty line, so nothing is lost by waiting for a possible LF
      scanned_ = next_line;
      continue;
    }
    SseEvent event;
    event.raw = buffer_.substr(begin_, next_line - begin_);
    std::string_view lines = event.raw;
    if (first_ && lines.starts_with("\xEF\xBB\xBF")) lines.remove_prefix(3);
    while (!lines.empty()) apply_line(take_line(lines), event);
    first_ = false;
    begin_ = scanned_ = next_line;
    swallow_lf_ = cr_at_end;
    return std::optional<SseEvent>(std::move(event));
  }
  if (buffer_.size() - begin_ > max_event_bytes_) {
    return Status(Code::kResourceExhausted,
                  fmt::format("a server-sent event is larger than {} bytes", max_event_bytes_), Scope::kPeer);
  }
  return std::optional<SseEvent>();
}

void SseBoundary::feed(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n' && last_was_cr_) {
      last_was_cr_ = false;
      continue;
    }
    last_was_cr_ = c == '\r';
    if (c == '\n' || c == '\r') {
      after_empty_line_ = line_is_empty_;
      line_is_empty_ = true;
      any_line_ = true;
    } else {
      line_is_empty_ = false;
    }
  }
}

}  // namespace tandem::net

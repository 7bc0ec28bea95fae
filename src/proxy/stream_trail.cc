// SPDX-License-Identifier: Apache-2.0
#include "proxy/stream_trail.h"

// Header-only use: no library to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "base/json.h"

namespace tandem::proxy {
namespace {

constexpr std::size_t kMostEventBytes = std::size_t{64} << 20;

/// The members that name the request and the time, which are in front: "data: {"id":"...","object":"...","created":N".
/// Empty if the event has none. A quote within a string is escaped, so that what is looked for is never inside one.
std::string_view head_of(std::string_view raw) {
  if (!raw.starts_with(R"(data: {"id":)")) return {};
  const auto end = raw.find(R"(,"model":)");
  return end == std::string_view::npos ? std::string_view() : raw.substr(0, end);
}

int choice_of(std::string_view data) {
  constexpr std::string_view kBefore = R"("choices":[{"index":)";
  const auto found = data.find(kBefore);
  if (found == std::string_view::npos) return -1;
  const std::string_view number = data.substr(found + kBefore.size());
  int index = -1;
  std::from_chars(number.data(), number.data() + number.size(), index);
  return index;
}

/// Over all but the head and the ids of tool calls.
std::uint64_t hash_event(std::string_view raw, std::uint64_t hash) {
  constexpr std::string_view kId = R"("id":")";
  raw.remove_prefix(head_of(raw).size());
  while (true) {
    const auto found = raw.find(kId);
    const std::string_view part = raw.substr(0, found == std::string_view::npos ? raw.size() : found + kId.size());
    hash = XXH3_64bits_withSeed(part.data(), part.size(), hash);
    if (found == std::string_view::npos) return hash;
    raw.remove_prefix(part.size());
    raw.remove_prefix(std::min(raw.find('"'), raw.size()));
  }
}

}  // namespace

net::SseParser StreamTrail::make_parser() { return net::SseParser(kMostEventBytes); }

void StreamTrail::begin_answer() {
  first_answer_ = choices_.empty();
  parser_ = make_parser();
  for (auto& [index, choice] : choices_) choice.seen = choice.seen_hash = 0;
}

StreamTrail::State StreamTrail::feed(std::string_view bytes, const std::function<bool()>& may_resume,
                                     std::string& out) {
  parser_.feed(bytes);
  while (true) {
    auto event = parser_.next();
    if (!event) {
      why_ = event.error();
      return State::kInterrupted;
    }
    if (!*event) return State::kGoesOn;
    const std::string_view raw = (*event)->raw;
    if (!(*event)->has_data) {
      out += raw;  // a comment, which keeps connections alive
      continue;
    }
    if (is_abort((*event)->data) || (is_fault((*event)->data) && may_resume())) return State::kInterrupted;
    Choice& choice = choices_[choice_of((*event)->data)];
    choice.seen_hash = hash_event(raw, choice.seen_hash);
    if (++choice.seen <= choice.passed) {
      if (choice.seen == choice.passed && choice.seen_hash != choice.passed_hash) return differs();
      continue;
    }
    choice.passed = choice.seen;
    choice.passed_hash = choice.seen_hash;
    const std::string_view head = head_of(raw);
    if (first_answer_ && head_.empty()) head_ = head;
    if (!head.empty()) out += head_;
    out += raw.substr(head.size());
    said_done_ = (*event)->data == "[DONE]";
  }
}

StreamTrail::State StreamTrail::finish(std::string& out) {
  for (const auto& [index, choice] : choices_)
    if (choice.seen < choice.passed) return differs();
  out += parser_.unfinished();
  return State::kGoesOn;
}

bool StreamTrail::is_abort(std::string_view data) {
  if (data.find(R"("finish_reason":"abort")") == std::string_view::npos) return false;
  why_ = Status(Code::kUnavailable, "the instance ended the answer unasked (finish_reason abort)", Scope::kPeer);
  return true;
}

bool StreamTrail::is_fault(std::string_view data) {
  if (!data.starts_with(R"({"error":)")) return false;
  const auto parsed = parse_json(data);
  const auto* error = parsed && parsed->is_object() ? parsed->get_object().if_contains("error") : nullptr;
  const auto* code = error != nullptr && error->is_object() ? error->get_object().if_contains("code") : nullptr;
  if (code == nullptr || !code->is_int64() || code->get_int64() < 500) return false;
  why_ = Status(Code::kUnavailable, "the instance says: " + std::string(data), Scope::kPeer);
  return true;
}

StreamTrail::State StreamTrail::differs() {
  why_ = Status(Code::kInternal, "another decoder's answer to it is not the same", Scope::kRequest);
  return State::kDiffers;
}

}  // namespace tandem::proxy

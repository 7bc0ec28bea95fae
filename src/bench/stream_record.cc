// SPDX-License-Identifier: Apache-2.0
#include "bench/stream_record.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

namespace tandem::bench {
namespace {

namespace json = boost::json;

constexpr std::size_t kScratchBytes = 4096;  // one chunk with a token has some 300 bytes
constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kShownBytes = 300;

const json::array* choices_of(const json::object& event) {
  const json::value* choices = event.if_contains("choices");
  return choices == nullptr ? nullptr : choices->if_array();
}

/// choices[0].text, or choices[0].delta.content.
std::string_view text_of(const json::array& choices, config::BenchBackend backend) {
  const json::object* holder = choices.front().if_object();
  if (holder != nullptr && backend == config::BenchBackend::kChat) {
    const json::value* delta = holder->if_contains("delta");
    holder = delta == nullptr ? nullptr : delta->if_object();
  }
  if (holder == nullptr) return {};
  const json::value* text = holder->if_contains(backend == config::BenchBackend::kChat ? "content" : "text");
  if (text == nullptr || !text->is_string()) return {};
  return text->get_string();
}

std::int64_t completion_tokens(const json::object& event) {
  const json::value* usage = event.if_contains("usage");
  if (usage == nullptr || !usage->is_object()) return 0;
  const json::value* count = usage->get_object().if_contains("completion_tokens");
  return count != nullptr && count->is_int64() ? count->get_int64() : 0;
}

std::string message_of(const json::value& error) {
  if (error.is_object()) {
    const json::value* message = error.get_object().if_contains("message");
    if (message != nullptr && message->is_string()) return std::string(message->get_string());
  }
  return json::serialize(error).substr(0, kShownBytes);
}

}  // namespace

void StreamAccount::on_choices(TimePoint when) {
  if (!any_token_) {
    record_.ttft = seconds(when - record_.start);
  } else {
    record_.itls.push_back(static_cast<float>(seconds(when - last_token_)));
  }
  any_token_ = true;
  last_token_ = when;
  record_.latency = seconds(when - record_.start);
}

Result<void> StreamAccount::on_event(std::string_view data, TimePoint when) {
  if (done_) return {};
  if (data == "[DONE]") {
    done_ = true;
    return {};
  }
  unsigned char scratch[kScratchBytes];
  json::monotonic_resource memory(scratch, sizeof scratch);
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::system::error_code error;
  const json::value value = json::parse(json::string_view(data.data(), data.size()), error, &memory, options);
  if (error || !value.is_object()) {
    return Status(Code::kUnavailable,
                  fmt::format("an event of the answer is no JSON object: {}", data.substr(0, kShownBytes)));
  }
  const json::object& event = value.get_object();
  if (const json::value* found = event.if_contains("error"); found != nullptr && !found->is_null())
    return Status(Code::kUnavailable, fmt::format("error in the stream: {}", message_of(*found)));
  const json::array* choices = choices_of(event);
  if (choices != nullptr && !choices->empty()) {
    on_choices(when);
    record_.text += text_of(*choices, backend_);
    return {};
  }
  if (const std::int64_t count = completion_tokens(event); count > 0) record_.output_tokens = count;
  if (backend_ == config::BenchBackend::kChat) record_.latency = seconds(when - record_.start);
  return {};
}

Result<void> StreamAccount::finish() {
  if (!any_token_) return Status(Code::kUnavailable, "the answer ended without an event that has choices");
  if (!done_) return Status(Code::kUnavailable, "the answer ended without [DONE]");
  record_.success = true;
  return {};
}

}  // namespace tandem::bench

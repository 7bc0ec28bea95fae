// SPDX-License-Identifier: Apache-2.0
#include "api/request_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/json_writer.h"
#include "base/log.h"

namespace tandem::api {
namespace {

/// The first `most` characters, quoted and escaped: a prompt must not be able to write lines of its own.
std::string quoted(std::string_view text, std::optional<std::int64_t> most) {
  std::size_t end = 0;
  for (std::int64_t count = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && most && count++ == *most) break;
  }
  std::string line;
  append_json_string(line, text.substr(0, end));
  return line;
}

std::span<const std::int32_t> cut(std::span<const std::int32_t> ids, std::optional<std::int64_t> most) {
  return most ? ids.first(std::min(ids.size(), static_cast<std::size_t>(*most))) : ids;
}

std::string or_none(const std::optional<std::int64_t>& number) {
  return number ? fmt::format("{}", *number) : std::string("None");
}

std::string params_text(const Job& job) {
  const worker::SamplingParams& p = job.sampling;
  const auto python = [](bool value) { return value ? "True" : "False"; };
  std::vector<std::string> stop;
  for (const std::string& text : p.stop) stop.push_back(quoted(text, std::nullopt));
  return fmt::format(
      "SamplingParams(n={}, presence_penalty={}, frequency_penalty={}, repetition_penalty={}, temperature={}, "
      "top_p={}, top_k={}, min_p={}, seed={}, stop=[{}], stop_token_ids=[{}], include_stop_str_in_output={}, "
      "ignore_eos={}, max_tokens={}, min_tokens={}, logprobs={}, prompt_logprobs={}, skip_special_tokens={})",
      job.n, p.presence_penalty, p.frequency_penalty, p.repetition_penalty, p.temperature, p.top_p, p.top_k, p.min_p,
      or_none(job.sampling_fields.seed), fmt::join(stop, ", "), fmt::join(p.stop_token_ids, ", "),
      python(p.include_stop_str_in_output), python(p.ignore_eos), p.max_tokens, p.min_tokens, or_none(p.logprobs),
      or_none(p.prompt_logprobs), python(p.skip_special_tokens));
}

}  // namespace

void log_request(const Context& context, const Job& job) {
  if (!context.config.enable_log_requests) return;
  const auto most = context.config.max_log_len;
  const std::string params = params_text(job);
  for (std::size_t i = 0; i < job.prompts.size(); ++i) {
    const std::vector<std::int32_t>& ids = job.prompts[i].ids;
    const auto& tokenizer = context.parts.tokenizer;
    const std::string text = tokenizer == nullptr ? "None" : quoted(tokenizer->decode(ids, false), most);
    log::info(
        "Received request {}: prompt: {}, params: {}, prompt_token_ids: [{}], prompt_embeds shape: None, "
        "lora_request: None.",
        job.chat ? job.id : fmt::format("{}-{}", job.id, i), text, params, fmt::join(cut(ids, most), ", "));
  }
}

void log_answer(const Context& context, const Job& job, std::span<const Choice> choices) {
  if (!context.config.enable_log_outputs) return;
  const auto most = context.config.max_log_len;
  for (const Choice& choice : choices) {
    log::info("Generated response {}{}: output: {}, output_token_ids: [{}], finish_reason: {}", job.id,
              job.stream ? " (streaming complete)" : "", quoted(choice.text, most),
              fmt::join(cut(choice.tokens, most), ", "),
              choice.finish ? engine::finish_reason_name(*choice.finish) : "None");
  }
}

}  // namespace tandem::api

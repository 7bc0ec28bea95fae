// SPDX-License-Identifier: Apache-2.0
// JSON of /v1/completions (vllm_api.md 6.2, 8, 9.2).
#include <algorithm>

#include "api/answer.h"
#include "api/json_writer.h"

namespace tandem::api {
namespace {

/// Number of characters (code points) of valid UTF-8.
std::int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const Context& context, const Job& job) : context_(context), job_(job) {}

  std::string whole(std::span<const Choice> choices) const override {
    JsonWriter writer;
    begin(writer).key("choices").begin_array();
    for (std::size_t i = 0; i < choices.size(); ++i) write_choice(writer, i, choices[i]);
    writer.end_array().null_member("service_tier").null_member("system_fingerprint").key("usage");
    write_usage(writer, total_usage(job_, choices), context_, true);
    std::vector<std::optional<transfer::Handover>> handovers;
    for (std::size_t i = 0; i < choices.size(); i += static_cast<std::size_t>(job_.n))
      handovers.push_back(choices[i].handover);
    writer.key("kv_transfer_params").raw(kv_params_json(handovers)).end_object();
    return writer.take();
  }

  std::vector<std::string> opening() const override { return {}; }

  std::string chunk(std::size_t index, const Choice& choice, const engine::Output& output,
                    const MessageDelta& /*delta*/) const override {
    const bool first = choice.tokens.size() == output.tokens.size();
    JsonWriter writer;
    begin(writer).key("choices").begin_array().begin_object();
    writer.member("index", static_cast<std::int64_t>(index));
    writer.member("text", text_of(index, first, output.text)).key("logprobs");
    const std::int64_t before =
        first ? 0 : num_characters(prompt(index).echo) + num_characters(choice.text) - num_characters(output.text);
    write_logprobs(writer, echoed(index, choice, first), output.logprobs, before);
    write_finish(writer, output.finish, output.stop_reason);
    writer.key("prompt_token_ids");
    if (job_.return_token_ids && first)
      write_ids(writer, prompt(index).ids);
    else
      writer.null();
    writer.key("token_ids");
    write_token_ids(writer, output.tokens);
    writer.end_object().end_array().key("usage");
    if (job_.continuous_usage)
      write_usage(writer, usage_so_far(index, choice), context_, false);
    else
      writer.null();
    writer.end_object();
    return "data: " + writer.take() + "\n\n";
  }

  std::string usage_event(const Usage& usage) const override {
    JsonWriter writer;
    begin(writer).key("choices").begin_array().end_array().key("usage");
    write_usage(writer, usage, context_, false);
    writer.end_object();
    return "data: " + writer.take() + "\n\n";
  }

 private:
  JsonWriter& begin(JsonWriter& writer) const {
    writer.begin_object().member("id", job_.id).member("object", "text_completion");
    return writer.member("created", job_.created).member("model", context_.model_name());
  }

  const Prompt& prompt(std::size_t choice) const { return job_.prompts[job_.prompt_of(choice)]; }

  std::string text_of(std::size_t choice, bool first, const std::string& text) const {
    const std::string& echo = first && !job_.return_token_ids ? prompt(choice).echo : kNothing;
    return job_.drop_output ? echo : echo + text;
  }

  void write_choice(JsonWriter& writer, std::size_t index, const Choice& choice) const {
    writer.begin_object().member("index", static_cast<std::int64_t>(index));
    writer.member("text", text_of(index, true, choice.text)).key("logprobs");
    write_logprobs(writer, echoed(index, choice, true), choice.logprobs, 0);
    write_finish(writer, choice.finish, choice.stop_reason);
    writer.key("token_ids");
    write_token_ids(writer, choice.tokens);
    writer.key("prompt_logprobs");
    write_prompt_logprobs(writer, choice, context_, job_);
    writer.key("prompt_token_ids");
    if (job_.return_token_ids)
      write_ids(writer, prompt(index).ids);
    else
      writer.null();
    writer.end_object();
  }

  static void write_finish(JsonWriter& writer, const std::optional<engine::FinishReason>& finish,
                           const std::variant<std::monostate, std::int32_t, std::string>& reason) {
    writer.key("finish_reason");
    if (finish)
      writer.string(engine::finish_reason_name(*finish));
    else
      writer.null();
    writer.key("stop_reason");
    write_stop_reason(writer, reason);
  }

  void write_token_ids(JsonWriter& writer, std::span<const std::int32_t> ids) const {
    if (job_.return_token_ids)
      write_ids(writer, ids);
    else
      writer.null();
  }

  using Lists = std::span<const std::vector<worker::TokenLogprob>>;
  /// Tokens of the prompt that stand before an answer's.
  struct Echoed {
    std::span<const std::int32_t> ids;
    Lists logprobs;
  };
  Echoed echoed(std::size_t index, const Choice& choice, bool first) const {
    if (!first || !job_.echo || choice.prompt_logprobs.empty()) return {};
    return {prompt(index).ids, choice.prompt_logprobs};
  }

  /// Parallel arrays; each map of top log-probabilities has the sampled token and up to N others. The first token of a
  /// prompt has none.
  void write_logprobs(JsonWriter& writer, const Echoed& echo, Lists lists, std::int64_t offset) const {
    if (!job_.sampling.logprobs) {
      writer.null();
      return;
    }
    std::vector<std::string> texts;
    JsonWriter values, tops, offsets;
    values.begin_array();
    tops.begin_array();
    offsets.begin_array();
    const auto add = [&](std::int32_t token, std::span<const worker::TokenLogprob> list) {
      texts.push_back(token_text(context_, token, job_.tokens_as_ids));
      offsets.integer(offset);
      offset += num_characters(texts.back());
      if (list.empty()) {
        values.null();
        tops.null();
        return;
      }
      values.real(list.front().logprob);
      write_top(tops, distinct_logprobs(list, static_cast<std::size_t>(*job_.sampling.logprobs) + 1));
    };
    for (std::size_t i = 0; i < echo.ids.size(); ++i) add(echo.ids[i], echo.logprobs[i]);
    for (const auto& list : lists)
      if (!list.empty() && !job_.drop_output) add(list.front().token, list);
    writer.begin_object().key("text_offset").raw(offsets.end_array().text());
    writer.key("token_logprobs").raw(values.end_array().text()).key("tokens").begin_array();
    for (const std::string& text : texts) writer.string(text);
    writer.end_array().key("top_logprobs").raw(tops.end_array().text()).end_object();
  }

  /// Keyed by token text: of tokens with equal text the first one counts.
  void write_top(JsonWriter& writer, std::span<const worker::TokenLogprob> entries) const {
    std::vector<std::string> keys;
    writer.begin_object();
    for (const worker::TokenLogprob& entry : entries) {
      std::string text = token_text(context_, entry.token, job_.tokens_as_ids);
      if (std::find(keys.begin(), keys.end(), text) != keys.end()) continue;
      writer.text_key(text).real(entry.logprob);
      keys.push_back(std::move(text));
    }
    writer.end_object();
  }

  Usage usage_so_far(std::size_t index, const Choice& choice) const {
    Usage usage;
    usage.prompt_tokens = static_cast<std::int64_t>(prompt(index).ids.size());
    usage.completion_tokens = static_cast<std::int64_t>(choice.tokens.size());
    return usage;
  }

  static inline const std::string kNothing;
  const Context& context_;
  const Job& job_;
};

}  // namespace

std::unique_ptr<AnswerFormat> completion_format(const Context& context, const Job& job) {
  return std::make_unique<CompletionFormat>(context, job);
}

}  // namespace tandem::api

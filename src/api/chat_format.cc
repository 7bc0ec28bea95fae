// SPDX-License-Identifier: Apache-2.0
// JSON of /v1/chat/completions (vllm_api.md 7.2, 8, 9.1).
#include <algorithm>

#include "api/answer.h"
#include "api/json_writer.h"

namespace tandem::api {
namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const Context& context, const Job& job) : context_(context), job_(job) {}

  std::string whole(std::span<const Choice> choices) const override {
    JsonWriter writer;
    begin(writer, "chat.completion").key("choices").begin_array();
    for (std::size_t i = 0; i < choices.size(); ++i) write_choice(writer, i, choices[i]);
    writer.end_array().null_member("service_tier").null_member("system_fingerprint").key("usage");
    write_usage(writer, total_usage(job_, choices), context_, true);
    writer.key("prompt_logprobs");
    write_prompt_logprobs(writer, choices.front(), context_, job_);
    writer.key("prompt_token_ids");
    if (job_.return_token_ids)
      write_ids(writer, job_.prompts[0].ids);
    else
      writer.null();
    writer.key("kv_transfer_params").raw(kv_params_json(std::span(&choices.front().handover, 1))).end_object();
    return writer.take();
  }

  std::vector<std::string> opening() const override {
    std::vector<std::string> events;
    for (std::size_t i = 0; i < job_.num_choices(); ++i) events.push_back(role_chunk(i));
    if (job_.prompts[0].echo.empty()) return events;
    for (std::size_t i = 0; i < job_.num_choices(); ++i) {
      JsonWriter writer;
      begin_chunk(writer, i).key("delta").begin_object().member("content", job_.prompts[0].echo).end_object();
      writer.null_member("logprobs").null_member("finish_reason").end_object().end_array();
      events.push_back(end_chunk(writer, 0));
    }
    return events;
  }

  std::string chunk(std::size_t index, const Choice& choice, const engine::Output& output,
                    const MessageDelta& delta) const override {
    // What a parser holds back is no news, unless something else goes out with it.
    const bool parsed = job_.message.reasoning || job_.message.tools != ToolMode::kNone;
    if (parsed && delta.empty() && !output.finish && !job_.return_token_ids && !job_.sampling.logprobs) return {};
    JsonWriter writer;
    begin_chunk(writer, index).key("delta");
    write_delta(writer, delta, choice.message->calls(), !parsed);
    writer.key("logprobs");
    write_logprobs(writer, output.logprobs);
    writer.key("finish_reason");
    if (output.finish) {
      writer.string(finish_reason(choice)).key("stop_reason");
      write_stop_reason(writer, output.stop_reason);
    } else {
      writer.null();
    }
    writer.key("token_ids");
    write_token_ids(writer, output.tokens);
    writer.end_object().end_array();
    return end_chunk(writer, choice.tokens.size());
  }

  std::string usage_event(const Usage& usage) const override {
    JsonWriter writer;
    begin(writer, "chat.completion.chunk").key("choices").begin_array().end_array().key("usage");
    write_usage(writer, usage, context_, false);
    writer.end_object();
    return "data: " + writer.take() + "\n\n";
  }

 private:
  JsonWriter& begin(JsonWriter& writer, const char* object) const {
    writer.begin_object().member("id", job_.id).member("object", object);
    return writer.member("created", job_.created).member("model", context_.model_name());
  }

  JsonWriter& begin_chunk(JsonWriter& writer, std::size_t choice) const {
    begin(writer, "chat.completion.chunk").key("choices").begin_array().begin_object();
    return writer.member("index", static_cast<std::int64_t>(choice));
  }

  std::string end_chunk(JsonWriter& writer, std::size_t num_tokens, bool with_prompt_ids = false) const {
    if (job_.continuous_usage) {
      Usage usage;
      usage.prompt_tokens = static_cast<std::int64_t>(job_.prompts[0].ids.size());
      usage.completion_tokens = static_cast<std::int64_t>(num_tokens);
      writer.key("usage");
      write_usage(writer, usage, context_, false);
    }
    if (with_prompt_ids) {
      writer.key("prompt_token_ids");
      if (job_.return_token_ids)
        write_ids(writer, job_.prompts[0].ids);
      else
        writer.null();
    }
    writer.end_object();
    return "data: " + writer.take() + "\n\n";
  }

  std::string role_chunk(std::size_t choice) const {
    JsonWriter writer;
    begin_chunk(writer, choice).key("delta").begin_object();
    writer.member("role", job_.role).member("content", "").end_object();
    writer.null_member("logprobs").null_member("finish_reason").end_object().end_array();
    return end_chunk(writer, 0, true);
  }

  void write_choice(JsonWriter& writer, std::size_t index, const Choice& choice) const {
    writer.begin_object().member("index", static_cast<std::int64_t>(index)).key("message").begin_object();
    writer.member("role", job_.role);
    write_message(writer, *choice.message);
    writer.end_object().key("logprobs");
    write_logprobs(writer, choice.logprobs);
    writer.key("finish_reason");
    if (choice.finish)
      writer.string(finish_reason(choice));
    else
      writer.null();
    writer.key("stop_reason");
    write_stop_reason(writer, choice.stop_reason);
    writer.key("token_ids");
    write_token_ids(writer, choice.tokens);
    writer.end_object();
  }

  /// "tool_calls" if all calls are whole, else why the engine stopped. A named tool was the client's own choice.
  std::string_view finish_reason(const Choice& choice) const {
    const bool whole_calls = !choice.message->calls().empty() && !choice.message->malformed();
    const bool stopped = *choice.finish == engine::FinishReason::kStop;
    const bool tells = job_.message.tools == ToolMode::kAuto || (job_.message.tools == ToolMode::kRequired && stopped);
    return whole_calls && tells ? "tool_calls" : engine::finish_reason_name(*choice.finish);
  }

  /// All members of a whole message but its role.
  void write_message(JsonWriter& writer, const MessageParser& message) const {
    const bool forced = job_.message.tools == ToolMode::kRequired || job_.message.tools == ToolMode::kNamed;
    // As vLLM: if one of the model's own calls is none, none is. A stream has told of them by then.
    const bool all_text = message.malformed() && !forced;
    const bool is_all_calls = !message.calls().empty() && !forced && !all_text;
    const std::string content = job_.prompts[0].echo + (all_text ? message.text() : message.content());
    if (content.empty() && (is_all_calls || !message.reasoning().empty()))
      writer.null_member("content");
    else
      writer.member("content", content);
    writer.null_member("refusal").null_member("annotations").null_member("audio").null_member("function_call");
    writer.key("tool_calls").begin_array();
    for (const ToolCall& call : message.calls()) {
      if (all_text) break;
      writer.begin_object().member("id", call.id).member("type", "function").key("function").begin_object();
      writer.member("name", call.name).member("arguments", call.arguments).end_object().end_object();
    }
    writer.end_array();
    for (const char* name : {"reasoning", "reasoning_content"}) {
      if (message.reasoning().empty() || !job_.message.show_reasoning)
        writer.null_member(name);
      else
        writer.member(name, message.reasoning());
    }
  }

  /// `always_content`: also if it is empty.
  static void write_delta(JsonWriter& writer, const MessageDelta& delta, std::span<const ToolCall> calls,
                          bool always_content) {
    writer.begin_object();
    if (!delta.reasoning.empty())
      for (const char* name : {"reasoning", "reasoning_content"}) writer.member(name, delta.reasoning);
    if (!delta.content.empty() || always_content) writer.member("content", delta.content);
    if (!delta.calls.empty()) {
      writer.key("tool_calls").begin_array();
      for (const MessageDelta::Call& call : delta.calls) {
        writer.begin_object();
        if (call.first) writer.member("id", calls[call.index].id).member("type", "function");
        writer.member("index", static_cast<std::int64_t>(call.index)).key("function").begin_object();
        if (call.first) writer.member("name", call.name);
        writer.member("arguments", call.arguments).end_object().end_object();
      }
      writer.end_array();
    }
    writer.end_object();
  }

  void write_token_ids(JsonWriter& writer, std::span<const std::int32_t> ids) const {
    if (job_.return_token_ids)
      write_ids(writer, ids);
    else
      writer.null();
  }

  void write_entry(JsonWriter& writer, const worker::TokenLogprob& entry) const {
    const std::string text = token_text(context_, entry.token, job_.tokens_as_ids);
    const std::string bytes =
        job_.tokens_as_ids || !context_.parts.tokenizer ? text : context_.parts.tokenizer->token_bytes(entry.token);
    writer.member("token", text).key("logprob").real(entry.logprob).key("bytes").begin_array();
    for (const char c : bytes) writer.integer(static_cast<unsigned char>(c));
    writer.end_array();
  }

  /// One entry a generated token, the end-of-sequence one included.
  void write_logprobs(JsonWriter& writer, std::span<const std::vector<worker::TokenLogprob>> lists) const {
    if (!job_.sampling.logprobs) {
      writer.null();
      return;
    }
    writer.begin_object().key("content").begin_array();
    for (const auto& list : lists) {
      if (list.empty()) continue;
      writer.begin_object();
      write_entry(writer, list.front());
      writer.key("top_logprobs").begin_array();
      for (const auto& entry : distinct_logprobs(list, static_cast<std::size_t>(*job_.sampling.logprobs))) {
        writer.begin_object();
        write_entry(writer, entry);
        writer.end_object();
      }
      writer.end_array().end_object();
    }
    writer.end_array().end_object();
  }

  const Context& context_;
  const Job& job_;
};

}  // namespace

std::unique_ptr<AnswerFormat> chat_format(const Context& context, const Job& job) {
  return std::make_unique<ChatFormat>(context, job);
}

}  // namespace tandem::api

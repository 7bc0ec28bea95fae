// SPDX-License-Identifier: Apache-2.0
#include "api/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>

#include "api/chat_prompt.h"
#include "base/log.h"
#include "base/utf8.h"

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr std::int64_t kDefaultCompletionTokens = 16;
constexpr std::size_t kMaxRequestIdBytes = 512;
constexpr std::size_t kMaxTraceparentBytes = 128;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 53;  // sums of it do not overflow

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Members whose mere presence asks for something this version does not do.
constexpr std::string_view kUnsupportedMembers[] = {"prompt_embeds", "repetition_detection", "thinking_token_budget"};

Outcome<void> check_stream_options(const Context& context, const Fields& body, Job& job) {
  const json::value* options = body.find("stream_options");
  if (options != nullptr && !options->is_object())
    return validation_error("dict_type", "stream_options", "Input should be a valid dictionary");
  if (options != nullptr && !options->as_object().empty()) {
    if (!job.stream) return value_error("Stream options can only be defined when `stream=True`.");
    const Fields fields(options->as_object());
    TANDEM_ASSIGN(job.include_usage, fields.boolean("include_usage", false));
    TANDEM_ASSIGN(const bool continuous, fields.boolean("continuous_usage_stats", false));
    job.continuous_usage = continuous && job.include_usage;
  }
  if (job.stream && context.config.enable_force_include_usage) job.include_usage = job.continuous_usage = true;
  return {};
}

/// X-Request-Id, else the member request_id, else random: printable, valid UTF-8, bounded.
Outcome<std::string> base_id_of(Context& context, const net::HttpRequest& request, const Fields& body) {
  TANDEM_ASSIGN(const auto member, body.text("request_id"));
  const auto header = request.headers.find("x-request-id");
  std::string id = header && !header->empty() ? std::string(*header) : member.value_or("");
  if (id.empty()) return context.random_hex(32);
  if (id.size() > kMaxRequestIdBytes)
    return bad_request(
        fmt::format("the request id has {} bytes; at most {} are allowed", id.size(), kMaxRequestIdBytes));
  return replace_ill_formed_utf8(id);
}

/// The W3C trace context, if it looks like one: "00-<32 hex>-<16 hex>-<2 hex>".
std::string traceparent_of(const net::HttpRequest& request) {
  const std::string_view text = request.headers.find("traceparent").value_or("");
  const bool fits = !text.empty() && text.size() <= kMaxTraceparentBytes &&
                    text.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
  return fits ? std::string(text) : std::string();
}

/// X-data-parallel-rank: which rank of the instance is to take the request. vLLM ignores what is not a number; a client
/// that names a rank wants that one, so it is told.
Outcome<std::optional<std::int32_t>> rank_of(const Context& context, const net::HttpRequest& request) {
  const auto text = request.headers.find("x-data-parallel-rank");
  if (!text) return std::optional<std::int32_t>();
  const std::int32_t size = context.config.data_parallel.size;
  std::int32_t rank = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (error == std::errc() && end == text->data() + text->size() && rank >= 0 && rank < size)
    return std::optional(rank);
  constexpr std::size_t kShown = 32;
  return bad_request(
      fmt::format("the header X-data-parallel-rank is '{}', expected a rank of this instance: {}",
                  replace_ill_formed_utf8(text->substr(0, kShown)), size == 1 ? "0" : fmt::format("0 to {}", size - 1)),
      "X-data-parallel-rank");
}

/// KV hand-over as far as this instance takes part in it. A stream cannot carry one back.
Outcome<void> read_handover(const Context& context, const Fields& body, Job& job) {
  TANDEM_ASSIGN(job.kv, read_kv_params(body));
  if (job.kv.remote_decode && (!context.produces_kv() || (job.stream && !job.for_prefill))) {
    log::debug("request {}: do_remote_decode is ignored: {}", job.id,
               job.stream ? "it is a stream" : "no producing connector");
    job.kv.remote_decode = false;
  }
  if (!job.kv.remote_prefill.empty() && !context.consumes_kv()) {
    log::info("request {}: do_remote_prefill is ignored: this instance has no consuming connector", job.id);
    job.kv.remote_prefill.clear();
  }
  if (!job.kv.push_to.empty() && !context.produces_kv())
    return bad_request("kv_transfer_params asks for a push, but this instance has no producing KV connector",
                       "kv_transfer_params");
  if (job.kv.metaserver && !context.consumes_kv()) {
    log::info("request {}: the metaserver is ignored: this instance has no consuming connector", job.id);
    job.kv.metaserver.reset();
  }
  return check_partners(context, job.kv);
}

/// Members that change nothing here, but have a type.
Outcome<void> check_idle_members(const Fields& body) {
  TANDEM_TRY(body.boolean("spaces_between_special_tokens", true));
  TANDEM_TRY(body.real("length_penalty"));
  for (const char* name : {"user", "guided_decoding_backend"}) TANDEM_TRY(body.text(name));
  for (const char* name : {"vllm_xargs", "mm_processor_kwargs"}) {
    const json::value* value = body.find(name);
    if (value != nullptr && !value->is_object())
      return validation_error("dict_type", name, "Input should be a valid dictionary");
  }
  return {};
}

Outcome<void> read_prompt_logprobs(const Context& context, const Fields& body, Job& job) {
  TANDEM_ASSIGN(const auto asked, body.integer("prompt_logprobs"));
  if (!asked) return {};
  if (*asked < -1) return value_error("`prompt_logprobs` must be a positive value or -1.");
  if (job.stream && *asked != 0) return value_error("`prompt_logprobs` are not available when `stream=True`.");
  TANDEM_ASSIGN(job.sampling_fields.prompt_logprobs, checked_logprobs(*asked, context.limits(), "prompt"));
  job.show_prompt_logprobs = true;
  return {};
}

/// What both endpoints have in common, up to the prompt.
Outcome<Job> read_common(Context& context, const net::HttpRequest& request, const Fields& body, bool chat,
                         bool for_prefill) {
  Job job;
  job.chat = chat;
  job.for_prefill = for_prefill;
  job.created = unix_seconds();
  TANDEM_ASSIGN(job.stream, body.boolean("stream", false));
  TANDEM_TRY(check_stream_options(context, body, job));
  TANDEM_ASSIGN(job.sampling_fields, read_sampling_fields(body));
  job.n = job.sampling_fields.n;
  TANDEM_ASSIGN(job.return_token_ids, body.boolean("return_token_ids", false));
  TANDEM_ASSIGN(job.tokens_as_ids,
                body.boolean("return_tokens_as_token_ids", context.config.return_tokens_as_token_ids));
  TANDEM_TRY(read_prompt_logprobs(context, body, job));
  TANDEM_TRY(check_idle_members(body));
  TANDEM_ASSIGN(const auto priority, body.int32("priority"));
  job.priority = priority.value_or(0);
  TANDEM_ASSIGN(job.rank, rank_of(context, request));
  TANDEM_ASSIGN(const auto salt, body.text("cache_salt"));
  if (salt && salt->empty()) return value_error("Parameter 'cache_salt' must be a non-empty string if provided.");
  job.cache_salt = salt.value_or("");
  TANDEM_ASSIGN(job.base_id, base_id_of(context, request, body));
  job.id = (chat ? "chatcmpl-" : "cmpl-") + job.base_id;
  job.timing = request.headers.find("x-tandem-timing").value_or("") == "1";
  job.traceparent = traceparent_of(request);
  if (!job.traceparent.empty()) log::debug("request {}: traceparent {}", job.id, job.traceparent);
  TANDEM_TRY(check_model(context, body));
  if (!context.engine().healthy())
    return Refusal(500, "InternalServerError", "EngineCore encountered an issue. See the server's log for the cause.");
  TANDEM_TRY(refuse_unsupported(body));
  TANDEM_ASSIGN(job.constraint, read_constraint(body, context.config.compact_json));
  TANDEM_TRY(read_handover(context, body, job));
  return job;
}

Outcome<void> check_ids(const Context& context, const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return bad_request("The decoder prompt cannot be empty", "prompt");
  for (const std::int32_t id : ids)
    if (id < 0 || id >= context.parts.vocab_size)
      return bad_request(
          fmt::format("Token id {} is out of vocabulary (vocabulary size: {})", id, context.parts.vocab_size),
          "prompt");
  return {};
}

/// The hand-overs against the prompts.
Outcome<void> check_handovers(Job& job) {
  if (!job.kv.remote_prefill.empty() && job.kv.remote_prefill.size() != job.prompts.size())
    return bad_request(fmt::format("kv_transfer_params is malformed: it hands over {} prompts, the request has {}",
                                   job.kv.remote_prefill.size(), job.prompts.size()),
                       "kv_transfer_params");
  // Some proxies send the one prompt that the message is about, others all of them.
  if (job.prompts.size() == 1 && !job.kv.push_to.empty()) job.kv.push_to = {std::move(job.kv.push_to.back())};
  if (job.kv.push_to.size() > job.prompts.size())
    return bad_request(fmt::format("kv_transfer_params is malformed: it asks for prompt {}, the request has {}",
                                   job.kv.push_to.size() - 1, job.prompts.size()),
                       "kv_transfer_params");
  return {};
}

/// Beside the tokens that were asked for; not positive if those do not fit at all.
std::int64_t room_for_prompt(const Context& context, std::optional<std::int64_t> asked) {
  return context.max_model_len() - std::max<std::int64_t>(1, asked.value_or(1));
}

/// The budget over all prompts (the smallest), then the sampling ranges and the number of choices.
Outcome<void> resolve(const Context& context, Job& job, std::optional<std::int64_t> asked) {
  std::int64_t budget = context.max_model_len();
  for (const Prompt& prompt : job.prompts) {
    TANDEM_TRY(check_ids(context, prompt.ids));
    TANDEM_ASSIGN(const std::int64_t left,
                  output_budget(context.max_model_len(), static_cast<std::int64_t>(prompt.ids.size()), asked,
                                context.parts.defaults));
    budget = std::min(budget, left);
  }
  TANDEM_ASSIGN(job.sampling, resolve_sampling(job.sampling_fields, context.parts.defaults, context.limits(), budget));
  const auto limit = static_cast<std::size_t>(context.engine().options().max_waiting);
  if (job.num_choices() > limit)
    return bad_request(fmt::format("the request asks for {} choices (prompts times n); at most {} are allowed",
                                   job.num_choices(), limit));
  if (job.for_prefill) {
    job.stream = job.include_usage = job.continuous_usage = false;
    job.n = job.sampling_fields.n = 1;
    job.sampling.max_tokens = job.sampling.min_tokens = 1;
  }
  return {};
}

Outcome<void> read_completion_logprobs(const Context& context, const Fields& body, Job& job) {
  TANDEM_ASSIGN(const auto logprobs, body.integer("logprobs"));
  if (!logprobs) return {};
  if (*logprobs < 0) return value_error("`logprobs` must be a positive value.");
  TANDEM_ASSIGN(job.sampling_fields.logprobs, checked_logprobs(*logprobs, context.limits()));
  // The prompt's tokens stand before the answer's, with log-probabilities of their own.
  if (job.echo && !job.sampling_fields.prompt_logprobs)
    job.sampling_fields.prompt_logprobs = job.sampling_fields.logprobs;
  return {};
}

/// Each word as it is, and as it follows a space if that is one way to write it.
Outcome<std::vector<std::vector<std::int32_t>>> read_bad_words(const Context& context, const Fields& body) {
  std::vector<std::vector<std::int32_t>> bad_words;
  const json::value* words = body.find("bad_words");
  if (words == nullptr) return bad_words;
  if (!words->is_array()) return validation_error("list_type", "bad_words", "Input should be a valid list");
  // Each is tokenised here and looked for at every token, by threads that all requests share.
  constexpr std::size_t kMaxBadWords = 1024;
  if (words->get_array().size() > kMaxBadWords)
    return bad_request(
        fmt::format("bad_words has {} words, at most {} are allowed", words->get_array().size(), kMaxBadWords),
        "bad_words");
  for (const json::value& word : words->get_array()) {
    if (!word.is_string()) return validation_error("string_type", "bad_words", "Input should be a valid string");
    std::string text(word.get_string());
    text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return bad_request("bad_words cannot contain an empty string.", "bad_words");
    TANDEM_ASSIGN(auto plain, tokenize(context, text, false));
    TANDEM_ASSIGN(auto spaced, tokenize(context, " " + text, false));
    const bool another = !plain.empty() && spaced.size() == plain.size() && spaced.front() != plain.front();
    bad_words.push_back(std::move(plain));
    if (another) bad_words.push_back(std::move(spaced));
  }
  return bad_words;
}

Outcome<void> read_chat_logprobs(const Context& context, const Fields& body, Job& job) {
  TANDEM_ASSIGN(const bool wanted, body.boolean("logprobs", false));
  TANDEM_ASSIGN(const auto top, body.integer("top_logprobs"));
  if (top && *top < -1) return value_error("`top_logprobs` must be a positive value or -1.");
  if (top && *top != 0 && !wanted) return value_error("when using `top_logprobs`, `logprobs` must be set to true.");
  if (!wanted) return {};
  TANDEM_ASSIGN(job.sampling_fields.logprobs, checked_logprobs(top.value_or(0), context.limits()));
  return {};
}

/// max_tokens of a completion: 16 if absent, what fits if null.
Outcome<std::optional<std::int64_t>> completion_tokens(const Fields& body) {
  TANDEM_ASSIGN(const auto asked, body.integer("max_tokens"));
  if (asked) return asked;
  if (body.object().contains("max_tokens")) return std::optional<std::int64_t>();
  return std::optional(kDefaultCompletionTokens);
}

Outcome<std::optional<std::int64_t>> chat_tokens(const Fields& body) {
  TANDEM_ASSIGN(const auto newer, body.integer("max_completion_tokens"));
  if (newer.value_or(0) != 0) return newer;
  TANDEM_ASSIGN(const auto older, body.integer("max_tokens"));
  return older ? older : newer;
}

void tell_of_unknown_fields(Context& context, const json::object& body, Schema schema) {
  if (const auto line = context.unknown_fields.line_about(body, schema)) log::warning("{}", *line);
}

/// The grammars of tool_choice, and where in a message that begins with thoughts a grammar begins.
Outcome<void> constrain_message(const Context& context, Job& job) {
  const MessagePlan& plan = job.message;
  const bool compact = context.config.compact_json;
  if (plan.tools == ToolMode::kNamed) {
    TANDEM_ASSIGN(job.constraint, named_tool_constraint(*plan.declared_tools, plan.tool_name, compact));
  } else if (plan.tools == ToolMode::kRequired) {
    TANDEM_ASSIGN(job.constraint, required_tools_constraint(*plan.declared_tools, plan.parallel_calls, compact));
  }
  if (!job.constraint || !plan.reasoning || !plan.starts_thinking) return {};
  job.grammar_after = context.parts.tokenizer ? context.parts.tokenizer->piece_to_id(kThinkEndTag) : -1;
  if (job.grammar_after < 0)
    return bad_request(
        fmt::format("structured output with --reasoning-parser needs {} to be one token of the model, and it is not",
                    kThinkEndTag),
        job.constraint->param);
  return {};
}

}  // namespace

Outcome<void> check_model(const Context& context, const Fields& body) {
  TANDEM_ASSIGN(const auto name, body.text("model"));
  if (!name || context.knows_model(*name)) return {};
  return Refusal(404, "NotFoundError", fmt::format("The model `{}` does not exist.", *name), "model");
}

Outcome<void> refuse_unsupported(const Fields& body) {
  TANDEM_ASSIGN(const auto best_of, body.integer("best_of"));
  TANDEM_ASSIGN(const auto n, body.integer("n"));
  if (best_of && *best_of < n.value_or(1))
    return bad_request(
        fmt::format("best_of must be greater than or equal to n, got n={} and best_of={}.", n.value_or(1), *best_of),
        "best_of");
  if (best_of && *best_of > 1) return bad_request("vLLM V1 does not yet support best_of.", "best_of");
  TANDEM_ASSIGN(const bool beam_search, body.boolean("use_beam_search", false));
  if (beam_search) return bad_request("beam search is not supported in this version", "use_beam_search");
  if (body.has("logits_processors"))
    return bad_request("logits_processors argument is not supported by this server", "logits_processors");
  if (body.lists("suffix") && body.has("suffix")) return bad_request("suffix is not currently supported", "suffix");
  for (const std::string_view name : kUnsupportedMembers)
    if (body.lists(name) && body.has(name))
      return bad_request(fmt::format("{} is not supported in this version", name), std::string(name));
  return {};
}

Outcome<std::int64_t> output_budget(std::int64_t max_model_len, std::int64_t prompt_tokens,
                                    std::optional<std::int64_t> asked, const SamplingDefaults& defaults) {
  const std::int64_t left = max_model_len - prompt_tokens;
  const std::int64_t needed = std::clamp<std::int64_t>(asked.value_or(1), 1, kMostTokens);
  if (needed > left)
    return bad_request(
        fmt::format(
            "This model's maximum context length is {} tokens. However, you requested {} output tokens and your "
            "prompt contains {} input tokens, for a total of {} tokens. Please reduce the length of the input "
            "prompt or the number of requested output tokens.",
            max_model_len, needed, prompt_tokens, prompt_tokens + needed),
        "input_tokens");
  std::int64_t budget = asked.value_or(std::min(left, defaults.max_new_tokens.value_or(left)));
  if (defaults.max_new_tokens_ceiling) budget = std::min(budget, *defaults.max_new_tokens_ceiling);
  return budget;
}

Outcome<Job> prepare_completion(Context& context, const net::HttpRequest& request) {
  TANDEM_ASSIGN(json::object object, read_json_body(request));
  tell_of_unknown_fields(context, object, completion_schema());
  const bool for_prefill = restore_client_limits(context, object);
  const Fields body(object, completion_schema());
  TANDEM_ASSIGN(Job job, read_common(context, request, body, false, for_prefill));
  TANDEM_ASSIGN(job.echo, body.boolean("echo", false));
  TANDEM_TRY(read_completion_logprobs(context, body, job));
  TANDEM_ASSIGN(auto asked, completion_tokens(body));
  if (job.echo && asked == 0) {
    job.drop_output = true;
    asked = 1;
  }
  TANDEM_ASSIGN(job.prompts, read_prompts(context, body));
  TANDEM_TRY(check_handovers(job));
  TANDEM_TRY(truncate_prompts(body, room_for_prompt(context, asked), job));
  for (Prompt& prompt : job.prompts) {
    if (!job.echo)
      prompt.echo.clear();
    else if (prompt.echo.empty() && context.parts.tokenizer)
      prompt.echo = context.parts.tokenizer->decode(prompt.ids, false);
  }
  TANDEM_TRY(resolve(context, job, asked));
  return job;
}

Outcome<Job> prepare_chat(Context& context, const net::HttpRequest& request) {
  TANDEM_ASSIGN(json::object object, read_json_body(request));
  tell_of_unknown_fields(context, object, chat_schema());
  const bool for_prefill = restore_client_limits(context, object);
  const Fields body(object, chat_schema());
  if (!body.has("messages")) return validation_error("missing", "messages", "Field required");
  TANDEM_ASSIGN(Job job, read_common(context, request, body, true, for_prefill));
  TANDEM_TRY(read_chat_logprobs(context, body, job));
  TANDEM_ASSIGN(const auto asked, chat_tokens(body));
  TANDEM_ASSIGN(job.echo, body.boolean("echo", false));
  TANDEM_ASSIGN(ChatPrompt rendered, render_chat_prompt(context, body));
  TANDEM_ASSIGN(const bool add_special, body.boolean("add_special_tokens", false));
  Prompt prompt;
  TANDEM_ASSIGN(prompt.ids, tokenize(context, rendered.text, add_special, !body.has("truncate_prompt_tokens")));
  if (job.echo) prompt.echo = rendered.last_content;
  job.prompts.push_back(std::move(prompt));
  TANDEM_TRY(check_handovers(job));
  TANDEM_TRY(truncate_prompts(body, room_for_prompt(context, asked), job));
  job.role = rendered.role;
  job.message = std::move(rendered.plan);
  TANDEM_TRY(constrain_message(context, job));
  // Tags of calls may be special tokens, which must not be skipped.
  if (job.message.tools == ToolMode::kAuto && job.message.format != config::ToolFormat::kLlama3Json)
    job.sampling_fields.skip_special_tokens = false;
  TANDEM_TRY(resolve(context, job, asked));
  TANDEM_ASSIGN(job.sampling.bad_words, read_bad_words(context, body));
  return job;
}

}  // namespace tandem::api

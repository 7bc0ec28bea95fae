// SPDX-License-Identifier: Apache-2.0
#include "api/sampling_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

namespace tandem::api {
namespace {

namespace json = boost::json;

constexpr double kLowestTemperature = 0.01;  // below it, but not zero, logits overflow
constexpr std::int64_t kMaxChoices = 1024;

Outcome<std::vector<std::string>> read_stop(const Fields& fields) {
  const json::value* value = fields.find("stop");
  std::vector<std::string> stop;
  if (value == nullptr) return stop;
  if (value->is_string()) {
    stop.emplace_back(value->as_string());
  } else if (value->is_array()) {
    for (const json::value& element : value->as_array()) {
      if (!element.is_string()) return validation_error("string_type", "stop", "Input should be a valid string");
      stop.emplace_back(element.as_string());
    }
  } else {
    return validation_error("string_type", "stop", "Input should be a valid string or a list of strings");
  }
  for (const std::string& text : stop)
    if (text.empty()) return bad_request("stop cannot contain an empty string.", "stop");
  return stop;
}

Outcome<std::vector<std::pair<std::int32_t, float>>> read_logit_bias(const Fields& fields) {
  std::vector<std::pair<std::int32_t, float>> bias;
  const json::value* value = fields.find("logit_bias");
  if (value == nullptr) return bias;
  if (!value->is_object()) return validation_error("dict_type", "logit_bias", "Input should be a valid dictionary");
  const Fields entries(value->as_object());
  for (const auto& member : entries.object()) {
    const std::string_view key = member.key();
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size())
      return bad_request(
          fmt::format(
              "Found token_id {} in logit_bias but token_id must be an integer or string representing an integer", key),
          "logit_bias");
    const auto amount = entries.real(key);
    if (!amount || !*amount) return validation_error("float_parsing", "logit_bias", "Input should be a valid number");
    bias.emplace_back(id, static_cast<float>(std::clamp(**amount, -100.0, 100.0)));
  }
  return bias;
}

Outcome<void> check_range(std::string_view name, double value, double low, bool low_allowed, double high,
                          std::string_view range) {
  if (value >= low && value <= high && (value != low || low_allowed)) return {};
  return bad_request(fmt::format("{} must be {}, got {}.", name, range, value), std::string(name));
}

Outcome<void> check_ids(const SamplingFields& fields, std::int32_t vocab_size) {
  std::vector<std::int32_t> outside;
  for (const auto& [id, amount] : fields.logit_bias)
    if (id < 0 || id >= vocab_size) outside.push_back(id);
  if (!outside.empty())
    return bad_request(fmt::format("token_id(s) [{}] in logit_bias contain out-of-vocab token ids. Vocabulary size: {}",
                                   fmt::join(outside, ", "), vocab_size),
                       "logit_bias");
  for (const std::int32_t id : fields.stop_token_ids)
    if (id < 0 || id >= vocab_size)
      return bad_request(
          fmt::format("stop_token_ids contains out-of-vocab token id {}. Vocabulary size: {}", id, vocab_size),
          "stop_token_ids");
  if (!fields.allowed_token_ids) return {};
  if (fields.allowed_token_ids->empty())
    return bad_request("allowed_token_ids is not None and empty!", "allowed_token_ids");
  for (const std::int32_t id : *fields.allowed_token_ids)
    if (id < 0 || id >= vocab_size)
      return bad_request("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids");
  return {};
}

Outcome<void> check_params(const worker::SamplingParams& params, std::int64_t top_k) {
  if (params.temperature < 0.0)
    return bad_request(fmt::format("temperature must be non-negative, got {}.", params.temperature), "temperature");
  TANDEM_TRY(check_range("top_p", params.top_p, 0, false, 1, "in (0, 1]"));
  TANDEM_TRY(check_range("min_p", params.min_p, 0, true, 1, "in [0, 1]"));
  TANDEM_TRY(check_range("presence_penalty", params.presence_penalty, -2, true, 2, "in [-2, 2]"));
  TANDEM_TRY(check_range("frequency_penalty", params.frequency_penalty, -2, true, 2, "in [-2, 2]"));
  if (params.repetition_penalty <= 0.0)
    return bad_request(fmt::format("repetition_penalty must be greater than zero, got {}.", params.repetition_penalty),
                       "repetition_penalty");
  if (top_k < -1) return bad_request(fmt::format("top_k must be 0 (disable), or at least 1, got {}.", top_k), "top_k");
  return {};
}

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

Outcome<SamplingFields> read_sampling_fields(const Fields& fields) {
  SamplingFields result;
  TANDEM_ASSIGN(result.temperature, fields.real("temperature"));
  TANDEM_ASSIGN(result.top_p, fields.real("top_p"));
  TANDEM_ASSIGN(result.min_p, fields.real("min_p"));
  TANDEM_ASSIGN(result.repetition_penalty, fields.real("repetition_penalty"));
  TANDEM_ASSIGN(const auto presence, fields.real("presence_penalty"));
  TANDEM_ASSIGN(const auto frequency, fields.real("frequency_penalty"));
  result.presence_penalty = presence.value_or(0.0);
  result.frequency_penalty = frequency.value_or(0.0);
  TANDEM_ASSIGN(result.top_k, fields.integer("top_k"));
  TANDEM_ASSIGN(result.seed, fields.integer("seed"));
  if (result.seed == -1) result.seed.reset();
  TANDEM_ASSIGN(const auto n, fields.integer("n"));
  if (n && *n < 1) return bad_request(fmt::format("n must be at least 1, got {}.", *n), "n");
  if (n && *n > kMaxChoices) return bad_request(fmt::format("n must be at most {}, got {}.", kMaxChoices, *n), "n");
  result.n = static_cast<std::int32_t>(n.value_or(1));
  TANDEM_ASSIGN(const auto min_tokens, fields.int32("min_tokens"));
  result.min_tokens = min_tokens.value_or(0);
  TANDEM_ASSIGN(result.stop, read_stop(fields));
  TANDEM_ASSIGN(auto stop_ids, fields.token_ids("stop_token_ids"));
  if (stop_ids) result.stop_token_ids = std::move(*stop_ids);
  TANDEM_ASSIGN(result.include_stop_str_in_output, fields.boolean("include_stop_str_in_output", false));
  TANDEM_ASSIGN(result.ignore_eos, fields.boolean("ignore_eos", false));
  TANDEM_ASSIGN(result.skip_special_tokens, fields.boolean("skip_special_tokens", true));
  TANDEM_ASSIGN(result.logit_bias, read_logit_bias(fields));
  TANDEM_ASSIGN(result.allowed_token_ids, fields.token_ids("allowed_token_ids"));
  return result;
}

Outcome<std::int32_t> checked_logprobs(std::int64_t asked, const SamplingLimits& limits, std::string_view whose) {
  const std::int64_t wanted = asked == -1 ? limits.vocab_size : asked;
  if (limits.max_logprobs >= 0 && wanted > limits.max_logprobs)
    return bad_request(fmt::format("Requested {} logprobs of {}, which is greater than max allowed: {}", whose, wanted,
                                   limits.max_logprobs),
                       whose == "prompt" ? "prompt_logprobs" : "logprobs");
  return static_cast<std::int32_t>(std::min<std::int64_t>(wanted, limits.vocab_size));
}

Outcome<worker::SamplingParams> resolve_sampling(const SamplingFields& fields, const SamplingDefaults& defaults,
                                                 const SamplingLimits& limits, std::int64_t max_tokens) {
  const auto pick = [](const std::optional<double>& asked, const std::optional<double>& fallback, double constant) {
    return asked.value_or(fallback.value_or(constant));
  };
  worker::SamplingParams params;
  params.temperature = pick(fields.temperature, defaults.temperature, 1.0);
  params.top_p = pick(fields.top_p, defaults.top_p, 1.0);
  params.min_p = pick(fields.min_p, defaults.min_p, 0.0);
  params.repetition_penalty = pick(fields.repetition_penalty, defaults.repetition_penalty, 1.0);
  params.presence_penalty = fields.presence_penalty;
  params.frequency_penalty = fields.frequency_penalty;
  const std::int64_t top_k = fields.top_k.value_or(defaults.top_k.value_or(0));
  TANDEM_TRY(check_params(params, top_k));
  TANDEM_TRY(check_ids(fields, limits.vocab_size));
  params.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(top_k, 0, limits.vocab_size));
  if (max_tokens < 1)
    return bad_request(fmt::format("max_tokens must be at least 1, got {}.", max_tokens), "max_tokens");
  if (fields.min_tokens < 0)
    return bad_request(fmt::format("min_tokens must be greater than or equal to 0, got {}.", fields.min_tokens),
                       "min_tokens");
  if (fields.min_tokens > max_tokens)
    return bad_request(
        fmt::format("min_tokens must be less than or equal to max_tokens={}, got {}.", max_tokens, fields.min_tokens),
        "min_tokens");
  params.max_tokens = static_cast<std::int32_t>(max_tokens);
  params.min_tokens = fields.min_tokens;
  if (params.temperature > 0.0) params.temperature = std::max(params.temperature, kLowestTemperature);
  if (params.greedy()) {
    if (fields.n > 1) return bad_request(fmt::format("n must be 1 when using greedy sampling, got {}.", fields.n), "n");
    params.top_p = 1.0;
    params.top_k = 0;
    params.min_p = 0.0;
  }
  params.ignore_eos = fields.ignore_eos;
  params.stop = fields.stop;
  params.stop_token_ids = fields.stop_token_ids;
  params.include_stop_str_in_output = fields.include_stop_str_in_output;
  params.skip_special_tokens = fields.skip_special_tokens;
  params.logit_bias = fields.logit_bias;
  if (fields.allowed_token_ids) params.allowed_token_ids = *fields.allowed_token_ids;
  params.logprobs = fields.logprobs;
  params.prompt_logprobs = fields.prompt_logprobs;
  return params;
}

std::uint64_t choice_seed(const SamplingFields& fields, std::uint64_t server_seed, std::string_view request_id,
                          std::int64_t choice) {
  if (fields.seed) return static_cast<std::uint64_t>(*fields.seed) + static_cast<std::uint64_t>(choice);
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over the id: the same in every process
  for (const char c : request_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix(hash ^ mix(server_seed + 0x9e3779b97f4a7c15ULL)) + static_cast<std::uint64_t>(choice);
}

}  // namespace tandem::api

// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <numbers>

#include "base/json.h"

namespace tandem::model {
namespace json = boost::json;
namespace {

constexpr double kMaxFactor = 1e6;
constexpr std::int64_t kMaxOriginalPosition = std::int64_t{1} << 30;

const json::object* object_member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_object() ? &value->as_object() : nullptr;
}

Status bad_rope(std::string_view message) { return Status(Code::kInvalidArgument, std::string(message)); }

Result<double> positive(const json::object& object, std::string_view key, std::optional<double> fallback,
                        std::string_view type) {
  TANDEM_ASSIGN(const std::optional<double> found, json_double(object, key));
  if (!found && !fallback)
    return bad_rope(fmt::format("RoPE type '{}' needs '{}', which the RoPE settings do not give", type, key));
  const double value = found ? *found : *fallback;
  if (!(value > 0.0) || !(value <= 1e12))
    return bad_rope(fmt::format("RoPE setting '{}' is {}, expected a positive number", key, value));
  return value;
}

Result<std::int64_t> original_positions(const json::object& object, std::string_view type) {
  TANDEM_ASSIGN(const std::optional<std::int64_t> found, json_int(object, "original_max_position_embeddings"));
  if (!found)
    return bad_rope(
        fmt::format("RoPE type '{}' needs 'original_max_position_embeddings' (32768 for Qwen2.5 and Qwen3); "
                    "taking max_position_embeddings instead would give wrong frequencies",
                    type));
  if (*found < 1 || *found > kMaxOriginalPosition)
    return bad_rope(
        fmt::format("original_max_position_embeddings is {}, expected 1..{}", *found, kMaxOriginalPosition));
  return *found;
}

double yarn_mscale(double factor, double weight) { return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; }

// transformers and vLLM read different keys; the union is accepted as long as it says one thing.
Result<double> yarn_attention_factor(const json::object& object, double factor) {
  TANDEM_ASSIGN(const std::optional<bool> apply_log, json_bool(object, "apply_yarn_scaling"));
  const double base = apply_log.value_or(true) ? yarn_mscale(factor, 1.0) : 1.0;
  TANDEM_ASSIGN(const std::optional<double> absolute, json_double(object, "attention_factor"));
  TANDEM_ASSIGN(const std::optional<double> relative, json_double(object, "attn_factor"));
  for (const auto& value : {absolute, relative})
    if (value && !(*value > 0.0 && *value < 1e3))
      return bad_rope(fmt::format("YaRN attention factor is {}, expected a number above 0 and below 1000", *value));
  if (absolute && relative && std::abs(*absolute - *relative * base) > 1e-6 * *absolute)
    return bad_rope(fmt::format("attention_factor {} and attn_factor {} (times {:.6f}) disagree; give one of them",
                                *absolute, *relative, base));
  if (absolute) return *absolute;
  if (relative) return *relative * base;
  TANDEM_ASSIGN(const std::optional<double> mscale, json_double(object, "mscale"));
  TANDEM_ASSIGN(const std::optional<double> mscale_all, json_double(object, "mscale_all_dim"));
  if (mscale.value_or(0.0) != 0.0 && mscale_all.value_or(0.0) != 0.0) {
    const double ratio = yarn_mscale(factor, *mscale) / yarn_mscale(factor, *mscale_all);
    if (!(ratio > 0.0 && ratio < 1e3))
      return bad_rope(
          fmt::format("mscale {} and mscale_all_dim {} give no usable attention factor", *mscale, *mscale_all));
    return ratio;
  }
  return base;
}

Result<double> scaling_factor(const json::object& object, std::string_view type) {
  TANDEM_ASSIGN(const double factor, positive(object, "factor", std::nullopt, type));
  if (factor < 1.0 || factor > kMaxFactor)
    return bad_rope(fmt::format("RoPE setting 'factor' is {}, expected 1..{:.0f}", factor, kMaxFactor));
  return factor;
}

Result<void> parse_llama3(const json::object& object, RopeConfig& rope) {
  rope.type = RopeType::kLlama3;
  TANDEM_ASSIGN(rope.factor, scaling_factor(object, "llama3"));
  TANDEM_ASSIGN(rope.low_freq_factor, positive(object, "low_freq_factor", std::nullopt, "llama3"));
  TANDEM_ASSIGN(rope.high_freq_factor, positive(object, "high_freq_factor", std::nullopt, "llama3"));
  TANDEM_ASSIGN(rope.original_max_position, original_positions(object, "llama3"));
  if (rope.high_freq_factor <= rope.low_freq_factor)
    return bad_rope(fmt::format("high_freq_factor {} must be above low_freq_factor {}", rope.high_freq_factor,
                                rope.low_freq_factor));
  return {};
}

Result<void> parse_yarn(const json::object& object, RopeConfig& rope) {
  rope.type = RopeType::kYarn;
  TANDEM_ASSIGN(rope.factor, scaling_factor(object, "yarn"));
  TANDEM_ASSIGN(rope.original_max_position, original_positions(object, "yarn"));
  TANDEM_ASSIGN(rope.beta_fast, positive(object, "beta_fast", 32.0, "yarn"));
  TANDEM_ASSIGN(rope.beta_slow, positive(object, "beta_slow", 1.0, "yarn"));
  TANDEM_ASSIGN(rope.extrapolation_factor, positive(object, "extrapolation_factor", 1.0, "yarn"));
  TANDEM_ASSIGN(const std::optional<bool> truncate, json_bool(object, "truncate"));
  rope.truncate = truncate.value_or(true);
  TANDEM_ASSIGN(rope.attention_factor, yarn_attention_factor(object, rope.factor));
  return {};
}

Result<std::string> rope_type_of(const json::object& object) {
  TANDEM_ASSIGN(const std::optional<std::string> type, json_string(object, "rope_type"));
  TANDEM_ASSIGN(const std::optional<std::string> legacy, json_string(object, "type"));
  if (type && legacy && *type != *legacy)
    return bad_rope(
        fmt::format("RoPE settings name two types: rope_type '{}' and type '{}'; give one", *type, *legacy));
  return type ? *type : legacy.value_or("default");
}

Result<void> parse_scaling(const json::object& object, RopeConfig& rope) {
  TANDEM_ASSIGN(const std::string type, rope_type_of(object));
  TANDEM_ASSIGN(const std::optional<double> partial, json_double(object, "partial_rotary_factor"));
  if (partial && *partial != 1.0)
    return Status(Code::kUnsupported, fmt::format("partial_rotary_factor {} is not supported, only 1", *partial));
  if (type == "default") return {};
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    TANDEM_ASSIGN(rope.factor, scaling_factor(object, "linear"));
    return {};
  }
  if (type == "llama3") return parse_llama3(object, rope);
  if (type == "yarn") return parse_yarn(object, rope);
  return Status(Code::kUnsupported,
                fmt::format("RoPE type '{}' is not supported; supported: default, linear, llama3, yarn", type));
}

std::vector<double> yarn_frequencies(const RopeConfig& rope, std::vector<double> base, double dim) {
  const auto turns_at = [&](double turns) {
    return dim * std::log(static_cast<double>(rope.original_max_position) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = turns_at(rope.beta_fast);
  double high = turns_at(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double keep = (1.0 - ramp) * rope.extrapolation_factor;
    base[i] = base[i] * keep + base[i] / rope.factor * (1.0 - keep);
  }
  return base;
}

double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_position);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double t = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - t) * frequency / rope.factor + t * frequency;
}

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  return "unknown";
}

}  // namespace

Result<RopeConfig> parse_rope(const json::object& config) {
  RopeConfig rope;
  TANDEM_ASSIGN(const std::optional<double> top_theta, json_double(config, "rope_theta"));
  rope.theta = top_theta.value_or(rope.theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json::value* value = config.if_contains(key);
    if (value != nullptr && !value->is_null() && !value->is_object())
      return bad_rope(fmt::format("field '{}' is {}, expected an object or null", key,
                                  std::string_view(json::to_string(value->kind()))));
  }
  const json::object* settings = object_member(config, "rope_parameters");
  if (settings == nullptr) settings = object_member(config, "rope_scaling");
  if (settings != nullptr) {
    for (const auto& [name, value] : *settings)
      if (value.is_object())
        return Status(
            Code::kUnsupported,
            fmt::format("RoPE settings that differ by layer type ('{}') are not supported", std::string_view(name)));
    TANDEM_ASSIGN(const std::optional<double> theta, json_double(*settings, "rope_theta"));
    rope.theta = theta.value_or(rope.theta);
    TANDEM_TRY(parse_scaling(*settings, rope));
  }
  if (!(rope.theta > 1.0) || !(rope.theta < 1e15))
    return bad_rope(fmt::format("rope_theta is {}, expected a number above 1", rope.theta));
  return rope;
}

std::vector<double> rope_frequencies(const RopeConfig& rope, std::int32_t head_dim) {
  const auto pairs = static_cast<std::size_t>(head_dim / 2);
  std::vector<double> result(pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    result[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  if (rope.frequency_factors.size() == pairs)
    for (std::size_t i = 0; i < pairs; ++i) result[i] /= static_cast<double>(rope.frequency_factors[i]);
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& frequency : result) frequency /= rope.factor;
      break;
    case RopeType::kLlama3:
      for (double& frequency : result) frequency = llama3_frequency(rope, frequency);
      break;
    case RopeType::kYarn:
      return yarn_frequencies(rope, std::move(result), static_cast<double>(head_dim));
  }
  return result;
}

RopeTables make_rope_tables(const RopeConfig& rope, std::int32_t head_dim, std::int64_t max_positions,
                            kernels::ThreadTeam& team) {
  const std::vector<double> frequencies = rope_frequencies(rope, head_dim);
  const std::size_t pairs = frequencies.size();
  RopeTables tables;
  tables.cos.resize(static_cast<std::size_t>(max_positions) * pairs);
  tables.sin.resize(tables.cos.size());
  team.run([&](int thread) {
    const std::int64_t begin = max_positions * thread / team.size();
    const std::int64_t end = max_positions * (thread + 1) / team.size();
    for (std::int64_t position = begin; position < end; ++position) {
      const std::size_t row = static_cast<std::size_t>(position) * pairs;
      for (std::size_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        tables.cos[row + i] = static_cast<float>(std::cos(angle) * rope.attention_factor);
        tables.sin[row + i] = static_cast<float>(std::sin(angle) * rope.attention_factor);
      }
    }
  });
  return tables;
}

std::string rope_identity(const RopeConfig& rope, std::int32_t head_dim) {
  // The frequencies say it all, whatever keys they came from.
  std::string text = fmt::format("{} a={:.9g}", rope_type_name(rope.type), rope.attention_factor);
  for (const double frequency : rope_frequencies(rope, head_dim)) text += fmt::format(" {:.9g}", frequency);
  return text;
}

}  // namespace tandem::model

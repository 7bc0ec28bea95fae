// SPDX-License-Identifier: Apache-2.0
// Nothing here sorts the vocabulary: top_k and top_p find the bucket of a weight histogram in which they cut, and sort
// that bucket alone. At 152k tokens a draw with both costs a few passes over one row.
#include "worker/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "worker/random.h"
#include "worker/row_sums.h"

namespace tandem::worker {
namespace {

constexpr float kLowestReported = -9999.0F;  ///< JSON has no infinity; where vLLM cuts
constexpr double kLowestTemperature = 0.01;
constexpr std::uint32_t kInPrompt = 0x80000000U;
/// The engine tells masks while the step computes; they are there long before.
constexpr std::chrono::seconds kMaskTimeout{30};

/// Buckets of weights in (0, 1]: 128 to a power of two down to 2^-40, and bucket 0 for everything below.
constexpr std::uint32_t kLowestBucketBits = std::bit_cast<std::uint32_t>(0x1.0p-40F) >> 16;
constexpr std::size_t kNumBuckets = (std::bit_cast<std::uint32_t>(1.0F) >> 16) - kLowestBucketBits + 2;

std::size_t bucket_of(float weight) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(weight) >> 16;
  return bits < kLowestBucketBits ? 0 : bits - kLowestBucketBits + 1;
}

bool in_vocabulary(std::int32_t id, std::size_t vocab) { return id >= 0 && static_cast<std::size_t>(id) < vocab; }

/// Excludes the tokens whose bit is not set, word by word: masks are mostly empty or mostly full.
void keep_only(std::span<const std::uint32_t> allowed, std::span<float> values) {
  for (std::size_t first = 0; first < values.size(); first += 32) {
    const std::uint32_t word = first / 32 < allowed.size() ? allowed[first / 32] : 0;
    if (word == ~0U) continue;
    const std::size_t end = std::min(first + 32, values.size());
    for (std::size_t i = first; i < end; ++i) values[i] = (word >> (i - first) & 1U) != 0 ? values[i] : kMinusInfinity;
  }
}

/// Whether all of the word but its last token stands at the end of the output.
bool would_end(std::span<const std::int32_t> word, std::span<const std::int32_t> output) {
  const auto begun = word.first(word.size() - 1);
  return begun.size() <= output.size() && std::ranges::equal(begun, output.last(begun.size()));
}

Status not_finite(std::span<const float> logits, const SequencePlan& plan) {
  std::size_t token = 0;
  while (std::isfinite(logits[token])) ++token;
  return {
      Code::kInternal,
      fmt::format("the model's logit of token {} is {} after {} tokens; expected a finite number. The checkpoint is "
                  "damaged, or it overflows the compute type: try --dtype float32",
                  token, logits[token], plan.first_position + static_cast<std::int64_t>(plan.tokens.size()))};
}

}  // namespace

void Sampler::reserve(std::size_t vocab_size) {
  values_.reserve(vocab_size);
  weights_.reserve(vocab_size);
  if (seen_.size() < vocab_size) seen_.resize(vocab_size, 0);
  touched_.reserve(vocab_size);
  candidates_.reserve(vocab_size);
  bucket_weight_.reserve(kNumBuckets);
  bucket_size_.reserve(kNumBuckets);
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SequencePlan& plan) {
  TANDEM_ASSERT(plan.sampling != nullptr, "a plan that samples has sampling parameters");
  const SamplingParams& params = *plan.sampling;
  const std::optional<float> raw_highest = highest_if_finite(logits);
  if (!raw_highest) return not_finite(logits, plan);

  std::span<const std::uint32_t> allowed;
  if (plan.mask) {
    TANDEM_ASSIGN(allowed, plan.mask->wait(kMaskTimeout));
  }
  const std::span<const float> values = process(logits, allowed, plan);
  const float highest = values.data() == logits.data() ? *raw_highest : highest_of(values);
  if (highest > 0.0F && std::isinf(highest)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("repetition_penalty {} makes a logit infinite; use a larger value", params.repetition_penalty));
  }
  if (std::isinf(highest)) {
    return Status(
        Code::kInvalidArgument,
        "no token may be sampled: what allowed_token_ids and the output's grammar leave is excluded by min_tokens, "
        "bad_words or logit_bias");
  }
  SampledToken result;
  result.sequence = plan.sequence;
  if (params.greedy()) {
    result.token = static_cast<std::int32_t>(std::find(values.begin(), values.end(), highest) - values.begin());
  } else {
    result.token = draw(values, highest, plan);
  }
  if (params.logprobs) {
    const auto row = mode_.processed ? processed_row(values, params) : raw_row(logits, allowed, plan);
    result.logprobs = highest_entries(row, mode_.logits, result.token, *params.logprobs);
  }
  return result;
}

Result<std::vector<TokenLogprob>> Sampler::score(std::span<const float> logits, std::int32_t token, std::int32_t count,
                                                 const SequencePlan& plan) {
  if (!highest_if_finite(logits)) return not_finite(logits, plan);
  return highest_entries(logits, /*as_logits=*/false, token, count);
}

PromptLogprobs Sampler::score_prompt(std::span<const float> logits, std::size_t vocab_size, const SequencePlan& plan) {
  PromptLogprobs result{plan.sequence, plan.first_position, {}, {}};
  for (std::size_t i = 0; i < plan.next_tokens.size(); ++i) {
    auto scored =
        score(logits.subspan(i * vocab_size, vocab_size), plan.next_tokens[i], *plan.sampling->prompt_logprobs, plan);
    if (!scored) {
      result.error = scored.error();
      break;
    }
    result.tokens.push_back(std::move(*scored));
  }
  return result;
}

std::span<const float> Sampler::process(std::span<const float> logits, std::span<const std::uint32_t> allowed,
                                        const SequencePlan& plan) {
  const SamplingParams& params = *plan.sampling;
  const bool masked = plan.mask || !params.allowed_token_ids.empty() || !plan.suppressed.empty() ||
                      !params.bad_words.empty() || !params.logit_bias.empty();
  const bool penalised = params.penalises() && !(plan.prompt_tokens.empty() && plan.output_tokens.empty());
  if (!masked && !penalised) return logits;
  apply_masks(logits, allowed, plan);
  if (penalised) apply_penalties(plan);
  return values_;
}

void Sampler::apply_masks(std::span<const float> logits, std::span<const std::uint32_t> allowed,
                          const SequencePlan& plan) {
  const SamplingParams& params = *plan.sampling;
  const std::size_t vocab = logits.size();
  if (params.allowed_token_ids.empty()) {
    values_.assign(logits.begin(), logits.end());
  } else {
    values_.assign(vocab, kMinusInfinity);
    for (const std::int32_t id : params.allowed_token_ids) {
      if (in_vocabulary(id, vocab)) values_[id] = logits[id];
    }
  }
  if (plan.mask) keep_only(allowed, values_);
  for (const std::int32_t id : plan.suppressed) {
    if (in_vocabulary(id, vocab)) values_[id] = kMinusInfinity;
  }
  for (const std::vector<std::int32_t>& word : params.bad_words) {
    if (in_vocabulary(word.back(), vocab) && would_end(word, plan.output_tokens)) values_[word.back()] = kMinusInfinity;
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (in_vocabulary(id, vocab)) values_[id] += bias;
  }
}

void Sampler::apply_penalties(const SequencePlan& plan) {
  const SamplingParams& params = *plan.sampling;
  if (seen_.size() < values_.size()) seen_.resize(values_.size(), 0);
  touched_.clear();
  const auto see = [this](std::int32_t id, std::uint32_t in_prompt) {
    if (!in_vocabulary(id, values_.size())) return;
    if (seen_[id] == 0) touched_.push_back(id);
    seen_[id] = in_prompt != 0 ? seen_[id] | in_prompt : seen_[id] + 1;
  };
  for (const std::int32_t id : plan.prompt_tokens) see(id, kInPrompt);
  for (const std::int32_t id : plan.output_tokens) see(id, 0);

  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  for (const std::int32_t id : touched_) {
    const std::uint32_t count = seen_[id] & ~kInPrompt;
    seen_[id] = 0;
    float& value = values_[id];
    if (value == kMinusInfinity) continue;
    value = value > 0.0F ? value / repetition : value * repetition;
    if (count > 0) {
      value -= frequency * static_cast<float>(count);
      value -= presence;
    }
  }
}

std::int32_t Sampler::draw(std::span<const float> values, float highest, const SequencePlan& plan) {
  const SamplingParams& params = *plan.sampling;
  const auto inverse = static_cast<float>(1.0 / std::max(params.temperature, kLowestTemperature));
  weights_.resize(values.size());
  exponentials(values, highest, inverse, weights_.data());
  if (params.min_p > 0.0) {
    // Weights are relative to the most likely token's, so min_p is a plain lower bound on them.
    const auto floor = static_cast<float>(params.min_p);
    for (float& weight : weights_) weight = weight < floor ? 0.0F : weight;
  }
  const bool cuts_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < values.size();
  if (cuts_k || params.top_p < 1.0) truncate(values, cuts_k ? params.top_k : 0, params.top_p);
  return pick(uniform(params.seed, static_cast<std::uint64_t>(plan.num_output_tokens)));
}

void Sampler::truncate(std::span<const float> values, std::int32_t top_k, double top_p) {
  fill_histogram();
  if (top_k > 0) {
    // Exactly k tokens stay: of equally likely ones those with the lowest ids.
    std::int64_t above = 0;
    std::size_t bucket = kNumBuckets;
    while (bucket > 0 && above + bucket_size_[bucket - 1] < top_k) above += bucket_size_[--bucket];
    if (bucket > 0) {
      --bucket;
      gather_bucket(values, bucket);
      cut_below(bucket, static_cast<std::size_t>(top_k - above));
    }
  }
  if (top_p < 1.0) {
    double total = 0.0;
    for (std::size_t bucket = kNumBuckets; bucket-- > 0;) total += bucket_weight_[bucket];
    const double wanted = top_p * total;
    double above = 0.0;
    std::size_t bucket = kNumBuckets;
    while (bucket > 0 && above + bucket_weight_[bucket - 1] < wanted) above += bucket_weight_[--bucket];
    if (bucket == 0) return;
    --bucket;
    gather_bucket(values, bucket);
    // The token that crosses the bound stays, so at least one does.
    std::size_t keep = 0;
    while (keep < candidates_.size() && (keep == 0 || above < wanted)) above += weights_[candidates_[keep++]];
    cut_below(bucket, keep);
  }
}

void Sampler::fill_histogram() {
  bucket_weight_.assign(kNumBuckets, 0.0);
  bucket_size_.assign(kNumBuckets, 0);
  for (const float weight : weights_) {
    if (weight <= 0.0F) continue;
    const std::size_t bucket = bucket_of(weight);
    bucket_weight_[bucket] += weight;
    ++bucket_size_[bucket];
  }
}

void Sampler::gather_bucket(std::span<const float> values, std::size_t bucket) {
  candidates_.clear();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0.0F && bucket_of(weights_[i]) == bucket) candidates_.push_back(static_cast<std::int32_t>(i));
  }
  std::sort(candidates_.begin(), candidates_.end(), [&](std::int32_t a, std::int32_t b) {
    if (weights_[a] != weights_[b]) return weights_[a] > weights_[b];
    if (values[a] != values[b]) return values[a] > values[b];
    return a < b;
  });
}

void Sampler::cut_below(std::size_t bucket, std::size_t keep) {
  for (float& weight : weights_) {
    if (bucket_of(weight) < bucket) weight = 0.0F;
  }
  std::fill(bucket_weight_.begin(), bucket_weight_.begin() + static_cast<std::ptrdiff_t>(bucket) + 1, 0.0);
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (i < keep) {
      bucket_weight_[bucket] += weights_[candidates_[i]];
    } else {
      weights_[candidates_[i]] = 0.0F;
    }
  }
}

std::int32_t Sampler::pick(double random) const {
  const double wanted = random * sum_all(weights_);
  double before = 0.0;
  std::int32_t last = -1;  // the last token with any weight: rounding may leave `wanted` past the end
  for (std::size_t start = 0; start < weights_.size(); start += kChunk) {
    const std::size_t count = std::min(kChunk, weights_.size() - start);
    const double chunk = sum_chunk(weights_.data() + start, count);
    const bool here = before + chunk > wanted;
    double sum = before;
    if (here || chunk > 0.0) {
      for (std::size_t i = start; i < start + count; ++i) {
        if (weights_[i] <= 0.0F) continue;
        last = static_cast<std::int32_t>(i);
        sum += weights_[i];
        if (here && sum > wanted) return last;
      }
    }
    if (here) return last;
    before += chunk;
  }
  TANDEM_ASSERT(last >= 0, "the most likely token always has weight 1");
  return last;
}

std::span<const float> Sampler::raw_row(std::span<const float> logits, std::span<const std::uint32_t> allowed,
                                        const SequencePlan& plan) {
  if (!plan.mask) return logits;
  values_.assign(logits.begin(), logits.end());
  keep_only(allowed, values_);
  return values_;
}

std::span<const float> Sampler::processed_row(std::span<const float> values, const SamplingParams& params) {
  if (params.greedy()) return values;
  if (values.data() != values_.data()) values_.assign(values.begin(), values.end());
  exclude_cut(params);
  const auto temperature = static_cast<float>(std::max(params.temperature, kLowestTemperature));
  for (float& value : values_) value = std::min(value / temperature, std::numeric_limits<float>::max());
  return values_;
}

void Sampler::exclude_cut(const SamplingParams& params) {
  const std::size_t vocab = values_.size();
  const std::size_t most = params.top_k > 0 ? std::min(static_cast<std::size_t>(params.top_k), vocab) : vocab;
  const auto weighed = std::count_if(weights_.begin(), weights_.end(), [](float weight) { return weight > 0.0F; });
  if (params.top_p < 1.0 || params.min_p > 0.0 || static_cast<std::size_t>(weighed) >= most) {
    for (std::size_t i = 0; i < vocab; ++i) values_[i] = weights_[i] > 0.0F ? values_[i] : kMinusInfinity;
    return;
  }
  if (most == vocab) return;
  // top_k alone keeps tokens that are too unlikely to have a weight; they have a logit none the less.
  candidates_.resize(vocab);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const auto end_of_kept = candidates_.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(candidates_.begin(), end_of_kept, candidates_.end(), [&](std::int32_t a, std::int32_t b) {
    return values_[a] != values_[b] ? values_[a] > values_[b] : a < b;
  });
  std::for_each(end_of_kept, candidates_.end(), [&](std::int32_t id) { values_[id] = kMinusInfinity; });
}

std::vector<TokenLogprob> Sampler::highest_entries(std::span<const float> row, bool as_logits, std::int32_t sampled,
                                                   std::int32_t count) {
  double log_sum = 0.0;
  if (!as_logits) {
    const float highest = highest_of(row);
    weights_.resize(row.size());
    exponentials(row, highest, 1.0F, weights_.data());
    log_sum = static_cast<double>(highest) + std::log(sum_all(weights_));
  }
  const auto reported = [&](std::int32_t id) {
    return std::max(static_cast<float>(static_cast<double>(row[id]) - log_sum), kLowestReported);
  };
  // Ranks order by value, then by id, as greedy sampling does.
  const auto before = [&](std::int32_t a, std::int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; };
  const float value = row[sampled];
  std::int32_t rank = 1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    rank += row[i] > value || (row[i] == value && static_cast<std::int32_t>(i) < sampled) ? 1 : 0;
  }
  // A heap of the best so far, its worst in front: a row costs one comparison a token and few replacements.
  const std::size_t wanted = count < 0 ? row.size() : std::min(static_cast<std::size_t>(count), row.size());
  candidates_.clear();
  for (std::size_t i = 0; wanted > 0 && i < row.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (candidates_.size() < wanted) {
      candidates_.push_back(id);
      std::push_heap(candidates_.begin(), candidates_.end(), before);
    } else if (row[i] > row[candidates_.front()]) {
      std::pop_heap(candidates_.begin(), candidates_.end(), before);
      candidates_.back() = id;
      std::push_heap(candidates_.begin(), candidates_.end(), before);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), before);

  std::vector<TokenLogprob> result;
  result.reserve(candidates_.size() + 1);
  result.push_back({sampled, reported(sampled), rank});
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i] == sampled) continue;
    result.push_back({candidates_[i], reported(candidates_[i]), static_cast<std::int32_t>(i) + 1});
  }
  return result;
}

}  // namespace tandem::worker

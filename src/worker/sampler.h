// SPDX-License-Identifier: Apache-2.0
// From one row of logits to one token (spec: vllm_api.md 5.2 "Sampling order" and 8). A pure function of the logits and
// of the sequence's plan; the object only keeps scratch memory. One object a thread.
//
// Order: the grammar's mask; allowed ids; suppressed ids and ends of bad words; logit bias; repetition (prompt and
// output), frequency and presence (output) penalties; then the most likely token (lowest id on ties) if greedy, else
// temperature, min_p, top_k, top_p, and a draw with uniform(seed, num_output_tokens). "Raw" log-probabilities are of
// the row after the first of these, "processed" ones of the row after the last but the draw: where vLLM v0.11 takes
// them.
//
// Exponentials and sums are our own fixed sequence of float and double operations, without fused multiply-add: equal
// logits give equal tokens on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "worker/worker.h"

namespace tandem::worker {

class Sampler {
 public:
  explicit Sampler(LogprobsMode mode = {}) : mode_(mode) {}
  /// Takes all scratch memory that a row of this length can ever need, so that sample() allocates nothing but the
  /// log-probabilities it returns.
  void reserve(std::size_t vocab_size);
  /// logits: [vocab_size]; ids past it cannot be chosen. plan.sampling is set. Ids out of range in the plan are
  /// ignored. Errors, all of scope request: internal if a logit is NaN or infinite; invalid_argument if the plan's
  /// masks leave no token; the mask's own.
  Result<SampledToken> sample(std::span<const float> logits, const SequencePlan& plan);
  /// The raw log-probabilities of a token that is known: its own first, then the `count` most likely ones.
  Result<std::vector<TokenLogprob>> score(std::span<const float> logits, std::int32_t token, std::int32_t count,
                                          const SequencePlan& plan);
  /// score() of each of plan.next_tokens. logits: [at least next_tokens.size(), vocab_size].
  PromptLogprobs score_prompt(std::span<const float> logits, std::size_t vocab_size, const SequencePlan& plan);

 private:
  /// What is left after masks, bias and penalties: the raw row itself, or a changed copy in values_.
  /// `allowed`: the grammar's mask, empty if there is none.
  std::span<const float> process(std::span<const float> logits, std::span<const std::uint32_t> allowed,
                                 const SequencePlan& plan);
  void apply_masks(std::span<const float> logits, std::span<const std::uint32_t> allowed, const SequencePlan& plan);
  void apply_penalties(const SequencePlan& plan);
  std::int32_t draw(std::span<const float> values, float highest, const SequencePlan& plan);
  /// Zeroes the weights that top_k and top_p cut off.
  void truncate(std::span<const float> values, std::int32_t top_k, double top_p);
  void fill_histogram();
  /// The positive weights of one bucket, heaviest first (then by value, then lowest id).
  void gather_bucket(std::span<const float> values, std::size_t bucket);
  /// Zeroes all buckets below `bucket`, and of `bucket` itself all but the first `keep` of gather_bucket().
  void cut_below(std::size_t bucket, std::size_t keep);
  std::int32_t pick(double random) const;
  /// The row as the model and the grammar's mask left it: `logits` itself, or a masked copy in values_.
  std::span<const float> raw_row(std::span<const float> logits, std::span<const std::uint32_t> allowed,
                                 const SequencePlan& plan);
  /// The row that the token was chosen from, after pick(): `values` itself, or a changed copy in values_.
  std::span<const float> processed_row(std::span<const float> values, const SamplingParams& params);
  /// Makes minus infinity of what min_p, top_k and top_p cut off values_.
  void exclude_cut(const SamplingParams& params);
  /// `sampled` first, then the `count` highest ones, as log-probabilities or as the row has them.
  std::vector<TokenLogprob> highest_entries(std::span<const float> row, bool as_logits, std::int32_t sampled,
                                            std::int32_t count);

  LogprobsMode mode_;
  std::vector<float> values_;          ///< [vocab] changed logits
  std::vector<float> weights_;         ///< [vocab] exp((value - highest) / temperature), 0 = cut
  std::vector<std::uint32_t> seen_;    ///< [vocab] output count, top bit: in the prompt; all 0 between calls
  std::vector<std::int32_t> touched_;  ///< ids with seen_ != 0
  std::vector<double> bucket_weight_;  ///< [buckets] sum of the weights in it
  std::vector<std::int32_t> bucket_size_;
  std::vector<std::int32_t> candidates_;  ///< ids
};

}  // namespace tandem::worker

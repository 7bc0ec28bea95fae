// SPDX-License-Identifier: Apache-2.0
#include "worker/sampled_before.h"

#include <algorithm>

namespace tandem::worker {

void SampledBefore::reserve(std::size_t num_sequences) {
  tokens_.reserve(num_sequences);
  lost_.reserve(num_sequences);
}

void SampledBefore::fill_in(StepPlan& plan) {
  lost_.clear();
  std::size_t place = 0;  // among the sequences that sample
  std::erase_if(plan.sequences, [&](SequencePlan& sequence) {
    const std::size_t here = place;
    if (sequence.sample) ++place;
    if (sequence.tokens.empty() || sequence.tokens.back() != kSampledBefore) return false;
    TANDEM_ASSERT(sequence.tokens.size() == 1 && sequence.sample, "a token that was just sampled is run alone");
    const auto found = std::lower_bound(tokens_.begin(), tokens_.end(), std::pair(sequence.sequence, kSampledBefore));
    if (found == tokens_.end() || found->first != sequence.sequence) {
      lost_.push_back({here, sequence.sequence});
      return true;
    }
    sequence.tokens.back() = found->second;
    const bool looks_back = !sequence.prompt_tokens.empty() || !sequence.sampling->bad_words.empty();
    if (looks_back) sequence.output_tokens.push_back(found->second);
    return false;
  });
}

void SampledBefore::complete(Result<StepResult>& result) {
  tokens_.clear();
  if (!result) return;
  for (const SampledToken& sampled : result->sampled) {
    if (sampled.error.ok()) tokens_.emplace_back(sampled.sequence, sampled.token);
  }
  std::sort(tokens_.begin(), tokens_.end());
  for (const Lost& lost : lost_) {
    const Status error(Code::kCancelled, "the step before sampled no token for this sequence");
    result->sampled.insert(result->sampled.begin() + static_cast<std::ptrdiff_t>(lost.place),
                           SampledToken{.sequence = lost.sequence, .token = -1, .logprobs = {}, .error = error});
  }
}

}  // namespace tandem::worker

// SPDX-License-Identifier: Apache-2.0
// The seam between an instance's brain (engine) and its hands: a worker runs step plans and samples. ModelWorker does
// it with a model; StubWorker with a script, so that engine, API, connectors and proxy can be tested without one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/cache_memory.h"
#include "worker/sampling_params.h"
#include "worker/token_mask.h"

namespace tandem::worker {

/// In place of a token id: the one that the plan before samples for the same sequence. The engine plans a step while
/// the one before still computes; the worker fills the token in when it starts the step.
inline constexpr std::int32_t kSampledBefore = -1;

/// One sequence's share of a step. Everything it points to stays unchanged until the step is done.
struct SequencePlan {
  std::uint64_t sequence = 0;        ///< the engine's id, returned in the result
  std::vector<std::int32_t> tokens;  ///< ids to run, at positions first_position ...; or kSampledBefore alone
  std::int64_t first_position = 0;
  std::vector<kv::BlockId> block_table;            ///< covers first_position + tokens.size() positions
  bool sample = false;                             ///< whether this step ends in a new token
  std::shared_ptr<const SamplingParams> sampling;  ///< set if sample, or if next_tokens are
  /// Of prompt tokens whose log-probabilities are wanted: what follows each of `tokens` (none follows the prompt's
  /// last).
  std::vector<std::int32_t> next_tokens;
  /// What penalties look at, and bad words at the output; set if sample and one of them or min_tokens is in use. With
  /// kSampledBefore the worker appends that token to the output.
  std::vector<std::int32_t> prompt_tokens;
  std::vector<std::int32_t> output_tokens;
  std::int32_t num_output_tokens = 0;     ///< tokens generated so far: position of the random number, and min_tokens
  std::vector<std::int32_t> suppressed;   ///< ids that must not be sampled now (eos and stop ids before min_tokens)
  std::shared_ptr<const TokenMask> mask;  ///< of the output's grammar; nullptr if it has none

  /// As new, in the memory of the lists that every decode step fills.
  void clear() {
    SequencePlan fresh;
    for (const auto list : {&SequencePlan::tokens, &SequencePlan::block_table}) {
      (this->*list).clear();
      (fresh.*list).swap(this->*list);
    }
    *this = std::move(fresh);
  }
};

struct StepPlan {
  std::uint64_t step = 0;
  std::vector<SequencePlan> sequences;
  /// May be empty. Called on the worker's thread, layer by layer, once the KV of all the plan's tokens in that layer is
  /// in the cache (on every rank), while later layers still compute. Must only post.
  std::function<void(std::int32_t layer)> on_layer;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0.0F;   ///< what LogprobsMode says, but never below -9999.0
  std::int32_t rank = 0;  ///< 1 = most likely
};

struct SampledToken {
  std::uint64_t sequence = 0;
  std::int32_t token = 0;
  /// The sampled token first, then the most likely ones (at most params.logprobs); empty if not asked for.
  std::vector<TokenLogprob> logprobs;
  /// Not ok: this sequence got no token (its masks exclude all of them, its logits are not finite, or the step before
  /// had none for it) and must end with this error; token is -1. The other sequences of the step are not touched.
  Status error;
};

/// Log-probabilities of a plan's next_tokens, as SampledToken has them.
struct PromptLogprobs {
  std::uint64_t sequence = 0;
  std::int64_t first_position = 0;  ///< of the token before the first one
  std::vector<std::vector<TokenLogprob>> tokens;
  Status error;  ///< a logit is not finite
};

struct StepResult {
  std::uint64_t step = 0;
  std::vector<PromptLogprobs> prompts;  ///< one for each sequence with next_tokens, in plan order
  std::vector<SampledToken> sampled;    ///< one for each sequence with sample, in plan order
};

class Worker {
 public:
  virtual ~Worker() = default;
  virtual std::int32_t vocab_size() const = 0;
  virtual kv::CacheMemory& cache() = 0;
  /// Runs the plan on the worker's own thread and calls `done` exactly once from there. At most two plans at a time;
  /// they run in order. The plan is the worker's until then; it does not look at it afterwards.
  virtual void submit(std::shared_ptr<StepPlan> plan, std::function<void(Result<StepResult>)> done) = 0;
};

}  // namespace tandem::worker

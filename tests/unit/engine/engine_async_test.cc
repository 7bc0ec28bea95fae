// SPDX-License-Identifier: Apache-2.0
// Async scheduling against step by step: the same tokens for every kind of request, and steps that really are planned
// while one computes. The other tests of the engine run both ways too.
#include <gtest/gtest.h>

#include <algorithm>

#include "text/grammar.h"
#include "unit/engine/instance.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using testing::eventually;
using testing::greedy;
using testing::kBlockSize;
using testing::kVocab;
using testing::prompt;
using worker::SamplingParams;
using worker::StubWorker;

/// Counts the plans that the worker has at a time, and those that wait for a token of the one before.
class WatchedWorker final : public worker::Worker {
 public:
  explicit WatchedWorker(worker::Worker& worker) : worker_(worker) {}
  std::int32_t vocab_size() const override { return worker_.vocab_size(); }
  kv::CacheMemory& cache() override { return worker_.cache(); }
  void submit(std::shared_ptr<worker::StepPlan> plan, std::function<void(Result<worker::StepResult>)> done) override {
    most_at_once = std::max(most_at_once.load(), ++at_once_);
    for (const worker::SequencePlan& sequence : plan->sequences) {
      ++num_shares;
      if (sequence.tokens.back() == worker::kSampledBefore) ++num_ahead;
    }
    worker_.submit(std::move(plan), [this, done = std::move(done)](Result<worker::StepResult> result) {
      --at_once_;
      done(std::move(result));
    });
  }

  std::atomic<int> most_at_once{0};
  std::atomic<int> num_ahead{0};
  std::atomic<int> num_shares{0};

 private:
  worker::Worker& worker_;
  std::atomic<int> at_once_{0};
};

/// Bad words by which half of all tokens may not come next: which half, the last token says.
std::vector<std::vector<std::int32_t>> every_second_pair() {
  std::vector<std::vector<std::int32_t>> words;
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(kVocab); ++a)
    for (std::int32_t b = a % 2; b < static_cast<std::int32_t>(kVocab); b += 2) words.push_back({a, b});
  return words;
}

/// Each token must be 1 more than the one before, modulo 7: what may come depends on every token. Ends after `length`.
class StaircaseMatcher final : public text::GrammarMatcher {
 public:
  explicit StaircaseMatcher(std::int32_t length) : left_(length) {}
  Result<void> accept(std::int32_t token) override {
    if (last_ && token % 7 != (*last_ + 1) % 7) return Status(Code::kInternal, "a token that the mask excludes");
    last_ = token;
    --left_;
    return {};
  }
  bool finished() const override { return left_ <= 0; }
  Result<std::vector<std::uint32_t>> mask() override {
    std::vector<std::uint32_t> words((kVocab + 31) / 32, last_ ? 0U : ~0U);
    for (std::uint32_t id = 0; last_ && id < kVocab; ++id) {
      if (static_cast<std::int32_t>(id % 7) == (*last_ + 1) % 7) words[id / 32] |= 1U << (id % 32);
    }
    return words;
  }

 private:
  std::optional<std::int32_t> last_;
  std::int32_t left_;
};

class Staircase final : public text::Grammar {
 public:
  explicit Staircase(std::int32_t length) : length_(length) {}
  Result<std::unique_ptr<text::GrammarMatcher>> start() const override {
    return std::unique_ptr<text::GrammarMatcher>(std::make_unique<StaircaseMatcher>(length_));
  }

 private:
  std::int32_t length_;
};

struct Setting {
  const char* name;
  EngineOptions options;
  std::int32_t num_blocks = 512;
};

struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> logprob_tokens;
  std::vector<float> logprobs;
  std::optional<FinishReason> finish;
  friend bool operator==(const Answer&, const Answer&) = default;
};

class EngineAsyncTest : public ::testing::Test {
 protected:
  void start(const Setting& setting, bool async) {
    engine_.reset();
    worker::StubOptions stub;
    stub.vocab_size = kVocab;
    stub.num_blocks = setting.num_blocks;
    stub.block_size = kBlockSize;
    stub.seconds_per_step = 50e-6;
    auto made = StubWorker::create(stub);
    ASSERT_TRUE(made);
    stub_ = std::move(*made);
    worker_ = std::make_unique<WatchedWorker>(*stub_);
    metrics_ = std::make_unique<obs::Registry>();
    EngineOptions options = setting.options;
    options.max_model_len = 400;
    options.eos_token_ids = {17};
    options.async_scheduling = async;
    engine_ = Engine::start(options, *worker_, nullptr, nullptr, *metrics_);
  }

  /// Every kind of request: greedy, seeded, penalties, min_tokens, stop ids, log-probabilities, biased; see also
  /// add_grammar().
  static std::vector<std::shared_ptr<SamplingParams>> kinds() {
    std::vector<std::shared_ptr<SamplingParams>> kinds;
    for (std::int32_t i = 0; i < 24; ++i) {
      auto params = greedy(1 + i % 23);
      if (i % 2 == 1) {
        params->temperature = 0.9;
        params->seed = static_cast<std::uint64_t>(i);
      }
      params->ignore_eos = i % 3 == 0;
      if (i % 4 == 1) params->min_tokens = 5;
      if (i % 5 == 2) params->repetition_penalty = 1.4;
      if (i % 5 == 3) params->frequency_penalty = 0.7;
      if (i % 5 == 4) params->presence_penalty = 1.1;
      if (i % 4 == 2) params->logprobs = 3;
      if (i % 6 == 4) params->stop_token_ids = {3, 40, 41, 42, 43, 77, 90};
      if (i % 7 == 5) params->logit_bias = {{12, 9.0F}};
      if (i % 8 == 4) params->bad_words = every_second_pair();
      kinds.push_back(std::move(params));
    }
    return kinds;
  }

  /// Some outputs have a grammar, from their beginning or from some token on.
  static constexpr std::size_t kGrammarLater = 6;  // a plain greedy request
  static void add_grammar(std::size_t i, GenerationRequest& request) {
    if (i % 4 != 3 && i != kGrammarLater) return;
    request.grammar = std::make_shared<Staircase>(static_cast<std::int32_t>(i) / 2);
    if (i == kGrammarLater) request.grammar_after = StubWorker::greedy(request.prompt, kVocab, 3).back();
  }

  std::vector<Answer> answers() {
    const auto params = kinds();
    std::vector<Collector> collectors(params.size());
    for (std::size_t i = 0; i < params.size(); ++i) {
      GenerationRequest request;
      request.prompt = prompt(5 + static_cast<std::int32_t>(i) % 19, static_cast<std::int32_t>(i) % 6);
      request.sampling = params[i];
      add_grammar(i, request);
      EXPECT_TRUE(engine_->submit(std::move(request), collectors[i].sink()));
    }
    std::vector<Answer> answers;
    for (Collector& collector : collectors) {
      Answer answer;
      answer.finish = collector.last().finish;
      EXPECT_TRUE(collector.last().error.ok()) << collector.last().error.to_string();
      answer.tokens = collector.tokens();
      for (const Output& output : collector.all()) {
        for (const auto& list : output.logprobs) {
          for (const worker::TokenLogprob& each : list) {
            answer.logprob_tokens.push_back(each.token);
            answer.logprobs.push_back(each.logprob);
          }
        }
      }
      answers.push_back(std::move(answer));
    }
    EXPECT_TRUE(eventually([this] {
      const EngineStats stats = engine_->stats();
      return stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks;
    }));
    return answers;
  }

  std::unique_ptr<StubWorker> stub_;
  std::unique_ptr<WatchedWorker> worker_;
  std::unique_ptr<obs::Registry> metrics_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineAsyncTest, EveryKindOfRequestGetsTheSameTokens) {
  const Setting settings[] = {
      {"plenty of everything", {}},
      {"small chunks", {.max_num_batched_tokens = 7}},
      {"a pool for three, with preemptions", {.max_num_seqs = 16, .max_num_batched_tokens = 24}, 32},
      {"the same by priority",
       {.max_num_seqs = 16, .max_num_batched_tokens = 24, .policy = SchedulingPolicy::kPriority},
       32},
      {"three ranks", {.num_ranks = 3, .max_num_seqs = 4, .max_num_batched_tokens = 16}, 3 * 40},
      {"without prefix caching", {.enable_prefix_caching = false}},
  };
  start(settings[0], false);
  const std::vector<Answer> expected = answers();
  EXPECT_EQ(worker_->most_at_once, 1);
  EXPECT_EQ(worker_->num_ahead, 0);
  const auto stopped = std::count_if(expected.begin(), expected.end(),
                                     [](const Answer& answer) { return answer.finish == FinishReason::kStop; });
  EXPECT_GT(stopped, 3) << "some must end where the scheduler does not foresee it";
  const std::vector<std::int32_t>& later = expected[kGrammarLater].tokens;
  ASSERT_EQ(later.size(), 3U + kGrammarLater / 2) << "free for three tokens, then as long as the grammar says";
  for (std::size_t i = 4; i < later.size(); ++i) EXPECT_EQ(later[i] % 7, (later[i - 1] + 1) % 7);
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.name);
    start(setting, true);
    EXPECT_EQ(answers(), expected);
    EXPECT_EQ(worker_->most_at_once, 2) << "a step is planned while one computes";
    EXPECT_GT(worker_->num_ahead, worker_->num_shares / 8);
  }
}

TEST_F(EngineAsyncTest, NoStepBehindTheLastPossibleToken) {
  for (const bool bad_words : {false, true}) {
    start({"", {}}, true);
    Collector collector;
    GenerationRequest request;
    request.prompt = prompt(9);
    const auto params = greedy(12);
    if (bad_words) params->bad_words = every_second_pair();
    request.sampling = params;
    ASSERT_TRUE(engine_->submit(std::move(request), collector.sink()));
    collector.last();
    EXPECT_TRUE(eventually([this] { return engine_->stats().num_running == 0; }));
    EXPECT_EQ(worker_->num_shares, 12);
    EXPECT_GT(worker_->num_ahead, 0) << "all 11, unless the engine's thread waits for a CPU longer than a step takes";
    const std::vector<std::int32_t> tokens = collector.tokens();
    for (std::size_t i = 1; bad_words && i < tokens.size(); ++i) EXPECT_NE(tokens[i] % 2, tokens[i - 1] % 2);
  }
}

TEST_F(EngineAsyncTest, TheSurplusTokenIsNeitherSentNorCached) {
  for (std::int32_t at = 1; at <= 9; ++at) {
    start({"", {}}, true);
    const std::vector<std::int32_t> tokens = StubWorker::greedy(prompt(7), kVocab, 12);
    const auto stop_at = static_cast<std::size_t>(at);
    if (std::find(tokens.begin(), tokens.begin() + at, tokens[stop_at]) != tokens.begin() + at) continue;
    auto params = greedy(12);
    params->ignore_eos = true;
    params->stop_token_ids = {tokens[stop_at]};
    Collector collector;
    GenerationRequest request;
    request.prompt = prompt(7);
    request.sampling = params;
    ASSERT_TRUE(engine_->submit(std::move(request), collector.sink()));
    EXPECT_EQ(collector.last().finish, FinishReason::kStop);
    EXPECT_EQ(collector.tokens(), std::vector<std::int32_t>(tokens.begin(), tokens.begin() + at + 1));
    EXPECT_TRUE(
        eventually([this] { return engine_->stats().num_free_blocks + engine_->stats().num_cached_blocks == 512; }));
    // Of all tokens but the stop token, whose KV the surplus step wrote.
    EXPECT_EQ(engine_->stats().num_cached_blocks, (7 + at) / kBlockSize) << at;
  }
}

}  // namespace
}  // namespace tandem::engine

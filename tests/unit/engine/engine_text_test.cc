// SPDX-License-Identifier: Apache-2.0
// Text through the whole engine: what the sink gets for stop strings, eos and aborts, with a made-up vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "unit/engine/collector.h"
#include "unit/engine/fake_tokenizer.h"
#include "worker/stub_worker.h"

namespace tandem::engine {
namespace {

using testing::Collector;
using testing::FakeTokenizer;
using worker::StubWorker;

constexpr std::int32_t kVocab = 60;

/// Each test runs step by step and with async scheduling.
class EngineTextTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    // Every id its own two-letter word, so that text and tokens can be compared.
    for (std::int32_t id = 0; id < kVocab; ++id) {
      tokenizer_->add(std::string{static_cast<char>('a' + id / 10), static_cast<char>('0' + id % 10)});
    }
    worker::StubOptions stub;
    stub.vocab_size = kVocab;
    auto made = StubWorker::create(stub);
    ASSERT_TRUE(made);
    worker_ = std::move(*made);
    expected_ = StubWorker::greedy(prompt_, kVocab, 12);
    params_.temperature = 0.0;
    params_.max_tokens = 12;
  }
  void start(std::vector<std::int32_t> eos = {}) {
    const EngineOptions options{.max_model_len = 200, .async_scheduling = GetParam(), .eos_token_ids = std::move(eos)};
    engine_ = Engine::start(options, *worker_, tokenizer_, nullptr, metrics_);
  }
  Output run(Collector& collector) {
    GenerationRequest request;
    request.id = "text";
    request.prompt = prompt_;
    request.sampling = std::make_shared<worker::SamplingParams>(params_);
    EXPECT_TRUE(engine_->submit(std::move(request), collector.sink()));
    return collector.last();
  }
  std::string words(std::size_t first, std::size_t last) const {
    return tokenizer_->decode(std::span(expected_).subspan(first, last - first), false);
  }

  const std::vector<std::int32_t> prompt_ = {3, 1, 4, 1, 5, 9, 2, 6};
  std::shared_ptr<FakeTokenizer> tokenizer_ = std::make_shared<FakeTokenizer>();
  std::unique_ptr<StubWorker> worker_;
  obs::Registry metrics_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> expected_;
  worker::SamplingParams params_;
};

TEST_P(EngineTextTest, AllTextAndAllTokens) {
  start();
  Collector collector;
  EXPECT_EQ(run(collector).finish, FinishReason::kLength);
  EXPECT_EQ(collector.text(), words(0, 12));
  EXPECT_EQ(collector.tokens(), expected_);
}

TEST_P(EngineTextTest, StopStringOverATokenBorder) {
  start();
  // The second letter of token 4 and the first of token 5.
  params_.stop = {"nowhere", words(4, 6).substr(1, 2)};
  const std::size_t at = words(0, 12).find(params_.stop[1]);
  const std::size_t num_tokens = (at + 1) / 2 + 1;
  Collector collector;
  const Output last = run(collector);
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(last.stop_reason), params_.stop[1]);
  EXPECT_EQ(collector.text(), words(0, 12).substr(0, at));
  EXPECT_EQ(collector.tokens().size(), num_tokens) << "tokens of the cut text are counted";
  EXPECT_EQ(collector.num_outputs(), num_tokens) << "also outputs whose text is held back";
}

TEST_P(EngineTextTest, HeldBackTextComesWithTheLastToken) {
  start();
  params_.stop = {"a string that never comes"};
  Collector collector;
  EXPECT_EQ(run(collector).finish, FinishReason::kLength);
  EXPECT_EQ(collector.text(), words(0, 12));
}

TEST_P(EngineTextTest, EosTextIsLeftOutUnlessIncluded) {
  const std::int32_t eos = expected_[3];
  ASSERT_EQ(std::count(expected_.begin(), expected_.begin() + 3, eos), 0);
  start({eos});
  params_.stop = {"a string that never comes"};
  Collector without;
  EXPECT_EQ(run(without).stop_reason.index(), 0U);
  EXPECT_EQ(without.text(), words(0, 3));
  EXPECT_EQ(without.tokens().size(), 4U);
  params_.include_stop_str_in_output = true;
  Collector with;
  run(with);
  EXPECT_EQ(with.text(), words(0, 4));
}

TEST_P(EngineTextTest, AStopStringInTheLastAllowedTokenIsAStop) {
  start();
  params_.max_tokens = 5;
  params_.stop = {words(4, 5)};
  ASSERT_EQ(words(0, 4).find(params_.stop[0]), std::string::npos);
  Collector collector;
  EXPECT_EQ(run(collector).finish, FinishReason::kStop);
  EXPECT_EQ(collector.text(), words(0, 4));
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineTextTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine

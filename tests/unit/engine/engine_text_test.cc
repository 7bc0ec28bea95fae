// SPDX-License-Identifier: Apache-2.0
// Text through the whole engine: what the sink gets for stop strings, eos and aborts, with a made-up vocabulary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

  std::vector<std::int32_t> prompt_ = {3, 1, 4, 1, 5, 9, 2, 6};
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

/// The words that the vocabulary above can write under a grammar, and how the output ends.
class EngineGrammarTest : public EngineTextTest {
 protected:
  GenerationRequest request_with(std::string_view regex, std::int32_t after = -1) {
    const text::GrammarCompiler compiler(tokenizer_, kVocab, -1);
    auto grammar = compiler.compile(text::GrammarKind::kRegex, regex);
    EXPECT_TRUE(grammar) << grammar.error().message();
    GenerationRequest request;
    request.id = "grammar";
    request.prompt = prompt_;
    request.sampling = std::make_shared<worker::SamplingParams>(params_);
    request.grammar = *grammar;
    request.grammar_after = after;
    return request;
  }
};

TEST_P(EngineGrammarTest, TheOutputMatchesAndEndsWithTheGrammar) {
  start();
  Collector collector;
  ASSERT_TRUE(engine_->submit(request_with("a[0-9](b[0-4]){3}"), collector.sink()));
  const Output last = collector.last();
  EXPECT_TRUE(last.error.ok()) << last.error.to_string();
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(last.stop_reason));
  EXPECT_THAT(collector.text(), ::testing::MatchesRegex("a.b.b.b."));
  EXPECT_EQ(collector.tokens().size(), 4U);
}

TEST_P(EngineGrammarTest, AnEndByTheGrammarIsNoEndByLength) {
  start();
  params_.max_tokens = 2;
  Collector exact;
  ASSERT_TRUE(engine_->submit(request_with("(a[0-9]){2}"), exact.sink()));
  EXPECT_EQ(exact.last().finish, FinishReason::kStop);
  Collector cut;
  ASSERT_TRUE(engine_->submit(request_with("(a[0-9]){3}"), cut.sink()));
  EXPECT_EQ(cut.last().finish, FinishReason::kLength);
}

TEST_P(EngineGrammarTest, ItBeginsBehindItsToken) {
  start();
  const std::int32_t after = expected_[3];
  const auto first = std::find(expected_.begin(), expected_.end(), after) - expected_.begin();
  Collector collector;
  ASSERT_TRUE(engine_->submit(request_with("c[0-9]c[0-9]", after), collector.sink()));
  EXPECT_EQ(collector.last().finish, FinishReason::kStop);
  const std::vector<std::int32_t> tokens = collector.tokens();
  ASSERT_EQ(tokens.size(), static_cast<std::size_t>(first) + 3);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + first + 1, expected_.begin()));
  EXPECT_EQ(collector.text().substr(collector.text().size() - 4, 1), "c");
}

TEST_P(EngineGrammarTest, WhatNoTokenCanWriteIsAnErrorOfTheRequest) {
  start();
  Collector collector;
  ASSERT_TRUE(engine_->submit(request_with("xyz"), collector.sink()));
  EXPECT_FALSE(collector.last().error.ok());
  Collector next;
  EXPECT_EQ(run(next).finish, FinishReason::kLength) << "others go on";
}

TEST_P(EngineTextTest, BadWordsAreNotCompleted) {
  start();
  params_.bad_words = {{expected_[0]}};
  Collector first;
  run(first);
  EXPECT_THAT(first.tokens(), ::testing::Not(::testing::Contains(expected_[0])));
  params_.bad_words = {{expected_[1], expected_[2]}};
  Collector pair;
  run(pair);
  EXPECT_EQ(pair.tokens()[1], expected_[1]) << "the beginning of a word is free";
  EXPECT_NE(pair.tokens()[2], expected_[2]);
}

TEST_P(EngineTextTest, LogProbabilitiesOfThePromptComeWithTheFirstToken) {
  start();
  params_.prompt_logprobs = 2;
  for (int run_number = 0; run_number < 2; ++run_number) {  // the second time the prefix cache is full
    Collector collector;
    run(collector);
    const auto lists = collector.first().prompt_logprobs;
    ASSERT_EQ(lists.size(), prompt_.size());
    EXPECT_TRUE(lists[0].empty());
    for (std::size_t i = 1; i < lists.size(); ++i) {
      const std::vector<std::int32_t> before(prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_EQ(lists[i].front().token, prompt_[i]);
      const auto best =
          std::find_if(lists[i].begin(), lists[i].end(), [](const auto& entry) { return entry.rank == 1; });
      ASSERT_NE(best, lists[i].end());
      EXPECT_EQ(best->token, StubWorker::greedy(before, kVocab, 1)[0]);
    }
  }
}

TEST_P(EngineTextTest, APromptOfOneTokenHasAListToo) {
  start();
  prompt_.resize(1);
  Collector unasked;
  run(unasked);
  EXPECT_TRUE(unasked.first().prompt_logprobs.empty());
  params_.prompt_logprobs = 0;
  Collector collector;
  run(collector);
  ASSERT_EQ(collector.first().prompt_logprobs.size(), 1U);
  EXPECT_TRUE(collector.first().prompt_logprobs[0].empty());
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineTextTest, ::testing::Bool(), testing::scheduling_name);
INSTANTIATE_TEST_SUITE_P(Scheduling, EngineGrammarTest, ::testing::Bool(), testing::scheduling_name);

}  // namespace
}  // namespace tandem::engine

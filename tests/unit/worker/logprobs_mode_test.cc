// SPDX-License-Identifier: Apache-2.0
// What each --logprobs-mode reports of each token of the vocabulary, against vLLM's steps written down plainly: in
// double, sorting everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "worker/sampler.h"

namespace tandem::worker {
namespace {

constexpr std::size_t kVocab = 300;
constexpr std::size_t kBadWord = 11;
constexpr double kCut = -std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  std::function<void(SamplingParams&, SequencePlan&)> set;
};

std::vector<float> logits_of_seed(unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  std::vector<float> logits(kVocab);
  for (float& value : logits) value = normal(generator);
  return logits;
}

/// Every third id is out.
std::shared_ptr<TokenMask> grammar() {
  std::vector<std::uint32_t> words(kVocab / 32 + 1, 0);
  for (std::size_t id = 0; id < kVocab; ++id) words[id / 32] |= (id % 3 != 0 ? 1U : 0U) << (id % 32);
  auto mask = std::make_shared<TokenMask>();
  mask->set(words);
  return mask;
}

std::vector<double> log_softmax(std::vector<double> row) {
  const double highest = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const double value : row) sum += std::exp(value - highest);
  for (double& value : row) value -= highest + std::log(sum);
  return row;
}

/// Ids, the highest first.
std::vector<std::size_t> order_of(const std::vector<double>& row) {
  std::vector<std::size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  return order;
}

void cut_all_from(std::size_t first, const std::vector<std::size_t>& order, std::vector<double>& row) {
  for (std::size_t i = first; i < order.size(); ++i) row[order[i]] = kCut;
}

void penalise(const SamplingParams& params, const SequencePlan& plan, std::vector<double>& row) {
  std::map<std::int32_t, int> in_output;
  for (const auto id : plan.output_tokens) ++in_output[id];
  std::map<std::int32_t, int> seen = in_output;
  for (const auto id : plan.prompt_tokens) ++seen[id];
  for (const auto& [id, count] : seen) {
    double& value = row[static_cast<std::size_t>(id)];
    value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
  }
  for (const auto& [id, count] : in_output)
    row[static_cast<std::size_t>(id)] -= params.frequency_penalty * count + params.presence_penalty;
}

void cut_unlikely(const SamplingParams& params, std::vector<double>& row) {
  const std::vector<double> logprobs = log_softmax(row);
  const double bound = *std::max_element(logprobs.begin(), logprobs.end()) + std::log(params.min_p);
  for (std::size_t id = 0; id < row.size(); ++id)
    if (logprobs[id] < bound) row[id] = kCut;
  const auto order = order_of(row);
  if (params.top_k > 0) cut_all_from(static_cast<std::size_t>(params.top_k), order, row);
  if (params.top_p >= 1.0) return;
  const std::vector<double> left = log_softmax(row);
  double before = 0.0;
  std::size_t keep = 0;
  while (keep < order.size() && before < params.top_p) before += std::exp(left[order[keep++]]);
  cut_all_from(keep, order, row);
}

/// vLLM's order: grammar | raw | allowed ids, ids kept away, bias, penalties, [temperature, min_p, top_k, top_p] |
/// processed.
std::vector<double> reference(const std::vector<float>& logits, const SequencePlan& plan, LogprobsMode mode) {
  const SamplingParams& params = *plan.sampling;
  std::vector<double> row(logits.begin(), logits.end());
  for (std::size_t id = 0; id < row.size(); ++id)
    if (plan.mask && id % 3 == 0) row[id] = kCut;
  if (mode.processed) {
    for (std::size_t id = 0; id < row.size(); ++id) {
      const auto& allowed = params.allowed_token_ids;
      if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), id) == allowed.end()) row[id] = kCut;
    }
    for (const auto id : plan.suppressed) row[static_cast<std::size_t>(id)] = kCut;
    if (!params.bad_words.empty()) row[kBadWord] = kCut;
    for (const auto& [id, bias] : params.logit_bias) row[static_cast<std::size_t>(id)] += bias;
    penalise(params, plan, row);
    if (!params.greedy()) {
      for (double& value : row) value /= params.temperature;
      cut_unlikely(params, row);
    }
  }
  return mode.logits ? row : log_softmax(row);
}

void everything(SamplingParams& params, SequencePlan& plan) {
  plan.mask = grammar();
  for (std::int32_t id = 0; id < 200; ++id) params.allowed_token_ids.push_back(id);
  plan.suppressed = {4, 5};
  params.bad_words = {{10, kBadWord}, {11, 13}};
  params.logit_bias = {{7, 3.0F}, {8, -2.5F}, {200, 50.0F}};
  plan.prompt_tokens = {1, 2, 7, 7};
  plan.output_tokens = {2, 10, 10};
  params.repetition_penalty = 1.3;
  params.frequency_penalty = 0.4;
  params.presence_penalty = 0.7;
}

std::vector<Case> cases() {
  return {
      {"plain", [](auto&, auto&) {}},
      {"greedy", [](auto& params, auto&) { params.temperature = 0.0; }},
      {"greedy with all masks and penalties",
       [](auto& params, auto& plan) {
         params.temperature = 0.0;
         everything(params, plan);
       }},
      {"a grammar alone", [](auto&, auto& plan) { plan.mask = grammar(); }},
      {"temperature", [](auto& params, auto&) { params.temperature = 0.6; }},
      {"min_p", [](auto& params, auto&) { params.min_p = 0.02; }},
      {"top_k", [](auto& params, auto&) { params.top_k = 12; }},
      {"top_k that keeps what no draw can reach",
       [](auto& params, auto&) {
         params.temperature = 0.02;
         params.top_k = 40;
       }},
      {"no cut, and tokens that no draw can reach", [](auto& params, auto&) { params.temperature = 0.02; }},
      {"top_p", [](auto& params, auto&) { params.top_p = 0.8; }},
      {"all of it",
       [](auto& params, auto& plan) {
         everything(params, plan);
         params.temperature = 1.4;
         params.min_p = 0.001;
         params.top_k = 30;
         params.top_p = 0.9;
       }},
  };
}

void check(const Case& one, LogprobsMode mode, unsigned seed) {
  const auto logits = logits_of_seed(seed);
  const auto params = std::make_shared<SamplingParams>();
  params->seed = seed;
  params->logprobs = -1;
  SequencePlan plan;
  one.set(*params, plan);
  plan.sampling = params;
  Sampler sampler(mode);
  const auto result = sampler.sample(logits, plan);
  ASSERT_TRUE(result) << result.error().to_string();
  Sampler other;
  EXPECT_EQ(result->token, other.sample(logits, plan)->token) << "the mode changes no token";

  const std::vector<double> row = reference(logits, plan, mode);
  const auto order = order_of(row);
  ASSERT_EQ(result->logprobs.size(), kVocab);
  EXPECT_EQ(result->logprobs.front().token, result->token);
  for (const TokenLogprob& entry : result->logprobs) {
    const double expected = std::max(row[static_cast<std::size_t>(entry.token)], -9999.0);
    ASSERT_NEAR(entry.logprob, expected, 2e-6 * std::max(1.0, std::fabs(expected))) << "token " << entry.token;
    ASSERT_EQ(order[static_cast<std::size_t>(entry.rank) - 1], static_cast<std::size_t>(entry.token));
  }
}

TEST(LogprobsModes, ReportWhatVllmReports) {
  for (const LogprobsMode mode : {LogprobsMode{}, LogprobsMode{.processed = true}, LogprobsMode{.logits = true},
                                  LogprobsMode{.processed = true, .logits = true}}) {
    for (const Case& one : cases()) {
      for (unsigned seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE(one.name + (mode.processed ? ", processed " : ", raw ") + (mode.logits ? "logits" : "logprobs"));
        check(one, mode, seed);
      }
    }
  }
}

TEST(LogprobsModes, ThePromptHasRawLogprobsInEachOfThem) {
  const auto logits = logits_of_seed(9);
  SequencePlan plan;
  const auto params = std::make_shared<SamplingParams>();
  params->temperature = 0.3;
  params->top_k = 2;
  plan.sampling = params;
  Sampler sampler({.processed = true, .logits = true});
  const auto scored = sampler.score(logits, 17, 0, plan);
  ASSERT_TRUE(scored);
  EXPECT_NEAR(scored->front().logprob, reference(logits, plan, {})[17], 1e-5);
}

TEST(LogprobsModes, NothingBelowMinus9999AndNoInfinityIsReported) {
  const float huge = std::numeric_limits<float>::max();
  SequencePlan plan;
  const auto params = std::make_shared<SamplingParams>();
  params->temperature = 0.5;
  params->logprobs = 2;
  plan.sampling = params;
  for (const bool logits : {false, true}) {
    for (const bool processed : {false, true}) {
      Sampler sampler({.processed = processed, .logits = logits});
      const auto result = sampler.sample(std::vector<float>{-10000.0F, huge, -huge}, plan);
      ASSERT_TRUE(result);
      EXPECT_EQ(result->logprobs[0].token, 1);
      EXPECT_EQ(result->logprobs[0].logprob, logits ? huge : 0.0F);
      EXPECT_EQ(result->logprobs[1].token, 0);
      EXPECT_EQ(result->logprobs[1].logprob, -9999.0F);
    }
  }
}

}  // namespace
}  // namespace tandem::worker

// SPDX-License-Identifier: Apache-2.0
// Each sampling parameter against a plain reference, the distribution of draws, and determinism by (seed, position).
#include "worker/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "worker/random.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SamplerTest : public ::testing::Test {
 protected:
  SamplingParams& params() { return *params_; }

  Result<SampledToken> try_sample(const std::vector<float>& logits) {
    plan_.sampling = params_;
    return sampler_.sample(logits, plan_);
  }
  std::int32_t sample(const std::vector<float>& logits) {
    auto result = try_sample(logits);
    EXPECT_TRUE(result.has_value()) << result.error().to_string();
    return result ? result->token : -1;
  }
  /// Draws at positions 0 .. count-1 and counts the tokens.
  std::map<std::int32_t, int> draw_many(const std::vector<float>& logits, int count) {
    std::map<std::int32_t, int> counts;
    for (int i = 0; i < count; ++i) {
      plan_.num_output_tokens = i;
      ++counts[sample(logits)];
    }
    return counts;
  }
  std::set<std::int32_t> support(const std::vector<float>& logits, int count = 3000) {
    std::set<std::int32_t> tokens;
    for (const auto& [token, n] : draw_many(logits, count)) tokens.insert(token);
    return tokens;
  }

  std::shared_ptr<SamplingParams> params_ = std::make_shared<SamplingParams>();
  SequencePlan plan_;
  Sampler sampler_;
};

std::vector<float> log_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<float> random_logits(std::size_t count, unsigned seed, float spread = 4.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> logits(count);
  for (float& value : logits) value = spread * normal(generator);
  return logits;
}

/// Ids, most likely first; of equally likely ones the lower id.
std::vector<std::int32_t> by_rank(const std::vector<float>& logits) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  return order;
}

/// What may be sampled, by full sorting in double: the oracle for min_p, top_k and top_p together.
std::set<std::int32_t> reference_support(const std::vector<float>& logits, const SamplingParams& params) {
  const auto order = by_rank(logits);
  const double highest = logits[order[0]];
  std::vector<double> weights;
  for (const auto id : order) {
    const double weight = std::exp((logits[id] - highest) / params.temperature);
    if (weight < params.min_p) break;
    if (params.top_k > 0 && weights.size() == static_cast<std::size_t>(params.top_k)) break;
    weights.push_back(weight);
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::set<std::int32_t> kept;
  double before = 0.0;
  for (std::size_t i = 0; i < weights.size() && (i == 0 || before < params.top_p * total); ++i) {
    kept.insert(order[i]);
    before += weights[i];
  }
  return kept;
}

TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, 0), ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  EXPECT_THAT(philox4x32({~0U, ~0U, ~0U, ~0U}, ~0ULL), ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
}

TEST(Philox, UniformIsInRangeAndDiffersBySeedAndPosition) {
  double sum = 0.0;
  std::set<double> values;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t position = 0; position < 100; ++position) {
      const double u = uniform(seed, position);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      values.insert(u);
      sum += u;
    }
  }
  EXPECT_EQ(values.size(), 10000U);
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST_F(SamplerTest, AMaskExcludesTokens) {
  params().temperature = 0.0;
  const auto mask = std::make_shared<TokenMask>();
  mask->set(std::vector<std::uint32_t>{0b1010U, 0xffffffffU});
  plan_.mask = mask;
  std::vector<float> logits(70, 0.0F);
  logits[0] = 9.0F;
  logits[3] = 1.0F;
  logits[69] = 8.0F;  // past the mask
  EXPECT_EQ(sample(logits), 3);
  logits[40] = 2.0F;
  EXPECT_EQ(sample(logits), 40);
  params().logprobs = 2;
  const auto logprobs = try_sample(logits)->logprobs;
  EXPECT_EQ(logprobs[0].rank, 1) << "raw log-probabilities are of what the mask leaves, as in vLLM";
  EXPECT_EQ(logprobs[1].token, 3);
  plan_.suppressed = {40};
  EXPECT_EQ(sample(logits), 3);
}

TEST_F(SamplerTest, AMaskThatFailsOrLeavesNothingIsAnErrorOfItsSequence) {
  const auto nothing = std::make_shared<TokenMask>();
  nothing->set(std::vector<std::uint32_t>{0});
  plan_.mask = nothing;
  EXPECT_THAT(try_sample({1.0F, 2.0F}).error().message(), HasSubstr("no token may be sampled"));
  const auto failed = std::make_shared<TokenMask>();
  failed->set(Status(Code::kInternal, "grammar: broken"));
  plan_.mask = failed;
  EXPECT_THAT(try_sample({1.0F, 2.0F}).error().message(), HasSubstr("grammar: broken"));
}

TEST_F(SamplerTest, GreedyTakesTheLowestIdOfEquallyLikelyOnes) {
  params().temperature = 0.0;
  EXPECT_EQ(sample({1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(sample({-0.0F, 0.0F}), 0);
  auto logits = random_logits(1000, 1);
  logits[17] = logits[900] = 100.0F;
  EXPECT_EQ(sample(logits), 17);
}

TEST_F(SamplerTest, TinyTemperaturesAreGreedyOrRaised) {
  params().temperature = 9e-6;
  EXPECT_TRUE(params().greedy());
  // 0.0001 is raised to 0.01: two logits 0.005 apart are then still both drawn.
  params().temperature = 0.0001;
  const auto counts = draw_many({1.0F, 1.005F}, 4000);
  EXPECT_NEAR(counts.at(0) / 4000.0, 1.0 / (1.0 + std::exp(0.5)), 0.03);
}

TEST_F(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<double> probabilities{0.4, 0.05, 0.3, 0.15, 0.1};
  for (const double temperature : {1.0, 0.7, 1.6}) {
    params().temperature = temperature;
    params().seed = 42;
    constexpr int kDraws = 20000;
    auto counts = draw_many(log_of(probabilities), kDraws);
    double total = 0.0;
    for (const double p : probabilities) total += std::pow(p, 1.0 / temperature);
    double chi_square = 0.0;
    for (std::size_t i = 0; i < probabilities.size(); ++i) {
      const double expected = kDraws * std::pow(probabilities[i], 1.0 / temperature) / total;
      chi_square += std::pow(counts[static_cast<std::int32_t>(i)] - expected, 2) / expected;
    }
    EXPECT_LT(chi_square, 18.5) << "4 degrees of freedom, p = 0.001; temperature " << temperature;
  }
}

TEST_F(SamplerTest, DrawsFollowTheDistributionOverManyChunks) {
  // 1000 tokens in 10 classes of equal size: the pick must be right across and inside its chunks.
  std::vector<float> logits(1000);
  double total = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = 0.3F * static_cast<float>(i / 100);
    total += std::exp(static_cast<double>(logits[i]));
  }
  const auto counts = draw_many(logits, 20000);
  std::vector<double> classes(10, 0.0);
  std::vector<double> residues(4, 0.0);
  for (const auto& [token, n] : counts) {
    classes[static_cast<std::size_t>(token / 100)] += n;
    residues[static_cast<std::size_t>(token % 4)] += n;
  }
  double chi_square = 0.0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const double expected = 20000 * 100 * std::exp(0.3 * static_cast<double>(i)) / total;
    chi_square += std::pow(classes[i] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 27.9) << "9 degrees of freedom, p = 0.001";
  for (const double n : residues) EXPECT_NEAR(n / 20000, 0.25, 0.02);
}

TEST_F(SamplerTest, TheSameSeedAndPositionGiveTheSameToken) {
  const auto logits = random_logits(5000, 2, 1.0F);
  params().seed = 7;
  std::vector<std::int32_t> first;
  std::vector<std::int32_t> backwards;
  for (int i = 0; i < 50; ++i) {
    plan_.num_output_tokens = i;
    first.push_back(sample(logits));
  }
  Sampler other;
  for (int i = 49; i >= 0; --i) {
    plan_.num_output_tokens = i;
    plan_.sequence = 99;  // neither the sequence's id nor its history matter
    auto result = other.sample(logits, plan_);
    ASSERT_TRUE(result);
    backwards.insert(backwards.begin(), result->token);
  }
  EXPECT_EQ(first, backwards);
  params().seed = 8;
  std::vector<std::int32_t> reseeded;
  for (int i = 0; i < 50; ++i) {
    plan_.num_output_tokens = i;
    reseeded.push_back(sample(logits));
  }
  EXPECT_NE(first, reseeded);
}

TEST_F(SamplerTest, TopKKeepsExactlyKAndPrefersLowIds) {
  params().top_k = 2;
  EXPECT_EQ(support(log_of({0.1, 0.3, 0.2, 0.4})), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(support({1, 1, 1, 1}), (std::set<std::int32_t>{0, 1}));
  params().top_k = 1;
  EXPECT_EQ(support(random_logits(1000, 3), 100).size(), 1U);
  params().top_k = 10;
  EXPECT_EQ(support({1, 1, 1}).size(), 3U);
}

TEST_F(SamplerTest, TopPKeepsTheTokenThatCrossesTheBound) {
  const auto logits = log_of({0.1, 0.3, 0.2, 0.4});
  params().top_p = 0.35;
  EXPECT_EQ(support(logits), (std::set<std::int32_t>{3}));
  params().top_p = 0.65;
  EXPECT_EQ(support(logits), (std::set<std::int32_t>{1, 3}));
  params().top_p = 0.75;
  EXPECT_EQ(support(logits), (std::set<std::int32_t>{1, 2, 3}));
  params().top_p = 1e-9;
  EXPECT_EQ(support(logits), (std::set<std::int32_t>{3}));
}

TEST_F(SamplerTest, TopPLooksAtWhatTopKLeft) {
  // Of 0.4 and 0.3 alone, 0.4 has 57 %: top_p 0.5 leaves one. Without top_k it would leave two.
  params().top_k = 2;
  params().top_p = 0.5;
  EXPECT_EQ(support(log_of({0.1, 0.3, 0.2, 0.4})), (std::set<std::int32_t>{3}));
}

TEST_F(SamplerTest, MinPIsRelativeToTheMostLikely) {
  params().min_p = 0.6;
  EXPECT_EQ(support(log_of({0.1, 0.3, 0.2, 0.4})), (std::set<std::int32_t>{1, 3}));
  params().min_p = 1.0;
  EXPECT_EQ(support(log_of({0.1, 0.3, 0.2, 0.4})), (std::set<std::int32_t>{3}));
}

TEST_F(SamplerTest, CutsAgreeWithFullSortingOnManyShapes) {
  int combinations = 0;
  for (const float spread : {0.0F, 0.01F, 1.0F, 5.0F}) {
    const auto logits = random_logits(300, 11, spread);
    for (const std::int32_t top_k : {0, 1, 5, 50, 299}) {
      for (const double top_p : {0.05, 0.5, 0.9, 1.0}) {
        for (const double min_p : {0.0, 0.02}) {
          params().temperature = 0.8;
          params().top_k = top_k;
          params().top_p = top_p;
          params().min_p = min_p;
          params().seed = static_cast<std::uint64_t>(++combinations);
          const auto allowed = reference_support(logits, params());
          const auto found = support(logits, 150);
          EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), found.begin(), found.end()))
              << "spread " << spread << " top_k " << top_k << " top_p " << top_p << " min_p " << min_p;
          if (allowed.size() <= 5 && spread <= 1.0F) {
            EXPECT_EQ(found, allowed);
          }
        }
      }
    }
  }
}

TEST_F(SamplerTest, AllowedSuppressedAndBiasAreMasks) {
  params().temperature = 0.0;
  const std::vector<float> logits{5, 4, 3, 2};
  params().allowed_token_ids = {2, 1, 77, -1};
  EXPECT_EQ(sample(logits), 1);
  plan_.suppressed = {1, 5000, -3};
  EXPECT_EQ(sample(logits), 2);
  params().allowed_token_ids = {};
  EXPECT_EQ(sample(logits), 0);
  params().logit_bias = {{3, 10.0F}, {1, 100.0F}, {4000, 1.0F}};
  EXPECT_EQ(sample(logits), 3) << "a bias does not bring a suppressed token back";
  params().temperature = 1.0;
  params().logit_bias = {{0, -100.0F}};
  EXPECT_EQ(support(logits), (std::set<std::int32_t>{2, 3}));
}

TEST_F(SamplerTest, TheEndOfABadWordIsExcludedBehindItsBeginning) {
  params().temperature = 0.0;
  params().bad_words = {{0}, {3, 2, 1}, {2, 5000}};
  const std::vector<float> logits{5, 4, 3, 2};
  EXPECT_EQ(sample(logits), 1) << "a word of one token, and one that has not begun";
  plan_.output_tokens = {3, 2};
  EXPECT_EQ(sample(logits), 2);
  plan_.output_tokens = {3, 3, 2};
  EXPECT_EQ(sample(logits), 2);
  for (const std::vector<std::int32_t>& other : {std::vector<std::int32_t>{2}, {2, 3}, {3, 2, 0}}) {
    plan_.output_tokens = other;
    EXPECT_EQ(sample(logits), 1);
  }
  plan_.prompt_tokens = {3, 2};
  plan_.output_tokens = {};
  EXPECT_EQ(sample(logits), 1) << "the prompt's end is no beginning";
}

TEST_F(SamplerTest, RepetitionPenaltyLooksAtPromptAndOutput) {
  params().temperature = 0.0;
  params().repetition_penalty = 2.0;
  plan_.prompt_tokens = {0, 0, 0};
  plan_.output_tokens = {1};
  EXPECT_EQ(sample({5, 4, 3}), 2) << "5/2 and 4/2 are below 3, however often they occur";
  EXPECT_EQ(sample({6.5F, 4, 3}), 0);
  EXPECT_EQ(sample({-1, -1.5F, -1.75F}), 2) << "negative logits are multiplied";
  EXPECT_EQ(sample({-1, -1.5F, -2.5F}), 0);
}

TEST_F(SamplerTest, FrequencyAndPresenceLookAtOutputOnly) {
  params().temperature = 0.0;
  plan_.prompt_tokens = {0, 0, 0};
  plan_.output_tokens = {1, 1, 2};
  params().frequency_penalty = 1.0;
  EXPECT_EQ(sample({4, 5.5F, 4.8F}), 0) << "4, 5.5 - 2, 4.8 - 1";
  EXPECT_EQ(sample({3, 5.5F, 4.8F}), 2);
  params().frequency_penalty = 0.0;
  params().presence_penalty = 1.0;
  EXPECT_EQ(sample({4, 5.5F, 4.8F}), 1) << "4, 5.5 - 1, 4.8 - 1";
  params().presence_penalty = -2.0;
  EXPECT_EQ(sample({6, 0, 4.5F}), 2) << "a negative penalty encourages";
}

TEST_F(SamplerTest, PenaltiesLeaveNoTraceForTheNextSequence) {
  params().temperature = 0.0;
  params().frequency_penalty = 2.0;
  plan_.output_tokens = {0, 0};
  EXPECT_EQ(sample({3, 2}), 1);
  plan_.output_tokens = {1};
  EXPECT_EQ(sample({3, 2}), 0);
}

TEST_F(SamplerTest, LogprobsAreOfTheRawLogitsSampledFirst) {
  params().temperature = 0.0;
  params().logprobs = 2;
  params().logit_bias = {{3, 50.0F}};
  const auto result = try_sample(log_of({0.1, 0.4, 0.3, 0.2}));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->token, 3);
  ASSERT_EQ(result->logprobs.size(), 3U);
  const std::vector<std::int32_t> tokens{3, 1, 2};
  const std::vector<std::int32_t> ranks{3, 1, 2};
  const std::vector<double> probabilities{0.2, 0.4, 0.3};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result->logprobs[i].token, tokens[i]);
    EXPECT_EQ(result->logprobs[i].rank, ranks[i]);
    EXPECT_NEAR(result->logprobs[i].logprob, std::log(probabilities[i]), 1e-6);
  }
}

TEST_F(SamplerTest, LogprobsDoNotRepeatTheSampledToken) {
  params().temperature = 0.0;
  params().logprobs = 2;
  auto result = try_sample({2, 2, 1});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->logprobs.size(), 2U);
  EXPECT_EQ(result->logprobs[0].token, 0);
  EXPECT_EQ(result->logprobs[0].rank, 1);
  EXPECT_EQ(result->logprobs[1].token, 1);
  EXPECT_EQ(result->logprobs[1].rank, 2) << "of equal ones the lower id comes first";

  params().logprobs = 0;
  result = try_sample({2, 2, 1});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->logprobs.size(), 1U);
  params().logprobs = 100;
  result = try_sample({2, 2, 1});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->logprobs.size(), 3U);
  params().logprobs = std::nullopt;
  result = try_sample({2, 2, 1});
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->logprobs.empty());
}

TEST_F(SamplerTest, LogprobsAgreeWithDoubleOnALargeRow) {
  const auto logits = random_logits(50000, 5, 3.0F);
  params().logprobs = 20;
  params().seed = 3;
  const auto result = try_sample(logits);
  ASSERT_TRUE(result);
  double total = 0.0;
  for (const float value : logits) total += std::exp(static_cast<double>(value));
  const auto order = by_rank(logits);
  for (const auto& entry : result->logprobs) {
    EXPECT_NEAR(entry.logprob, logits[entry.token] - std::log(total), 2e-6);
    EXPECT_EQ(order[static_cast<std::size_t>(entry.rank) - 1], entry.token);
  }
  EXPECT_EQ(result->logprobs[0].token, result->token);
}

TEST_F(SamplerTest, MinusInfinityIsReportedAsANumber) {
  params().temperature = 0.0;
  params().logprobs = 2;
  const float huge = std::numeric_limits<float>::max();
  const auto result = try_sample({huge, -huge});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->logprobs[1].logprob, -9999.0F);
}

TEST_F(SamplerTest, LogitsThatAreNotNumbersAreErrors) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{20}, std::size_t{99}}) {
      auto logits = random_logits(100, 6);
      logits[place] = bad;
      for (const double temperature : {0.0, 1.0}) {
        params().temperature = temperature;
        const auto result = try_sample(logits);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), Code::kInternal);
        EXPECT_THAT(result.error().message(), HasSubstr("token " + std::to_string(place) + " "));
      }
    }
  }
}

TEST_F(SamplerTest, MasksThatExcludeEverythingAreAnError) {
  params().allowed_token_ids = {1};
  plan_.suppressed = {1};
  const auto result = try_sample({1, 2, 3});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(result.error().message(), HasSubstr("allowed_token_ids"));
}

TEST_F(SamplerTest, APenaltyThatOverflowsIsAnError) {
  params().repetition_penalty = 1e-50;
  plan_.prompt_tokens = {0, 1};
  plan_.suppressed = {1};
  const auto result = try_sample({1, 2, 3});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("repetition_penalty"));
}

}  // namespace
}  // namespace tandem::worker

// SPDX-License-Identifier: Apache-2.0
#include "bench/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <set>

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;

const text::Tokenizer& tokenizer() {
  static const auto kTokenizer = text::Tokenizer::from_file(".cache/tokenizers/qwen3/tokenizer.json");
  EXPECT_TRUE(kTokenizer) << kTokenizer.error().message() << " (tools/fetch_test_data.sh gets it)";
  return **kTokenizer;
}

std::vector<Sample> samples_of(const config::BenchConfig& config) {
  auto samples = make_samples(config, tokenizer());
  EXPECT_TRUE(samples) << samples.error().message();
  return samples ? std::move(*samples) : std::vector<Sample>();
}

std::int64_t count(const std::string& text) {
  return static_cast<std::int64_t>(tokenizer().encode(text, false)->size());
}

TEST(RandomDataset, LengthsAreDrawnWithinTheRatio) {
  config::BenchConfig config;
  config.num_prompts = 100;
  config.random_input_len = 40;
  config.random_output_len = 10;
  config.random_range_ratio = 0.25;
  const auto samples = samples_of(config);
  ASSERT_EQ(samples.size(), 100u);
  std::set<std::int64_t> inputs, outputs;
  std::size_t exact = 0;
  for (const Sample& sample : samples) {
    EXPECT_EQ(count(sample.prompt), sample.prompt_tokens);
    EXPECT_LE(sample.prompt_tokens, 50 + 5);
    inputs.insert(sample.prompt_tokens);
    outputs.insert(sample.output_tokens);
    if (sample.prompt_tokens >= 30 && sample.prompt_tokens <= 50) ++exact;
  }
  // 10 * 0.75 = 7.5 is rounded down, 12.5 up.
  EXPECT_EQ(*outputs.begin(), 7);
  EXPECT_EQ(*outputs.rbegin(), 13);
  EXPECT_EQ(outputs.size(), 7u);
  EXPECT_GT(inputs.size(), 15u);
  EXPECT_GT(exact, 95u);
}

TEST(RandomDataset, PromptsDifferAndTheSeedDecides) {
  config::BenchConfig config;
  config.num_prompts = 20;
  config.random_input_len = 30;
  std::set<std::string> prompts;
  std::size_t exact = 0;
  for (const Sample& sample : samples_of(config)) {
    prompts.insert(sample.prompt);
    EXPECT_EQ(sample.output_tokens, 128);
    if (sample.prompt_tokens == 30) ++exact;
  }
  EXPECT_EQ(prompts.size(), 20u);
  EXPECT_GT(exact, 10u);
  EXPECT_EQ(samples_of(config)[7].prompt, samples_of(config)[7].prompt);
  const std::string first = samples_of(config)[0].prompt;
  config.seed = 1;
  EXPECT_NE(samples_of(config)[0].prompt, first);
}

TEST(RandomDataset, NoSpecialTokensInPrompts) {
  // A vocabulary of 26 letters and one token that ends a turn: prompts go around it several times.
  text::GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "default";
  for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary.tokens.emplace_back(1, letter);
  vocabulary.token_types.assign(26, 1);
  vocabulary.tokens.emplace_back("<|im_end|>");
  vocabulary.token_types.push_back(3);
  const auto letters = text::Tokenizer::from_gguf(vocabulary);
  ASSERT_TRUE(letters) << letters.error().message();
  config::BenchConfig config;
  config.num_prompts = 4;
  config.random_input_len = 100;
  const auto samples = make_samples(config, **letters);
  ASSERT_TRUE(samples) << samples.error().message();
  for (const Sample& sample : *samples) {
    EXPECT_EQ(sample.prompt.size(), 100u);
    EXPECT_EQ(sample.prompt.find('<'), std::string::npos);
    EXPECT_NE(sample.prompt.find("xyza"), std::string::npos);
  }
}

/// How many tokens two texts have in common at their beginning.
std::size_t common_tokens(const std::string& a, const std::string& b) {
  const auto x = *tokenizer().encode(a, false), y = *tokenizer().encode(b, false);
  return static_cast<std::size_t>(std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
}

TEST(RandomDataset, APrefixIsTheSameInAll) {
  config::BenchConfig config;
  config.num_prompts = 5;
  config.random_input_len = 20;
  config.random_prefix_len = 50;
  const auto samples = samples_of(config);
  for (const Sample& sample : samples) {
    EXPECT_GE(common_tokens(sample.prompt, samples[0].prompt), 45u);
    EXPECT_NEAR(static_cast<double>(sample.prompt_tokens), 70.0, 6.0);
  }
}

TEST(PrefixRepetition, EveryPrefixComesEquallyOften) {
  config::BenchConfig config;
  config.dataset = config::BenchDataset::kPrefixRepetition;
  config.num_prompts = 24;
  config.num_prefixes = 3;
  config.repeated_prefix_len = 60;
  config.repeated_suffix_len = 10;
  config.repeated_output_len = 9;
  const auto samples = samples_of(config);
  ASSERT_EQ(samples.size(), 24u);
  for (const Sample& sample : samples) {
    EXPECT_EQ(sample.output_tokens, 9);
    EXPECT_EQ(std::count_if(samples.begin(), samples.end(),
                            [&](const Sample& other) { return common_tokens(sample.prompt, other.prompt) >= 50; }),
              8);
  }
}

class FileDatasets : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(config_.dataset_path, std::ios::binary) << text; }
  void SetUp() override {
    config_.dataset_path = testing::TempDir() + "tandem_dataset.json";
    config_.num_prompts = 4;
  }
  void TearDown() override { std::filesystem::remove(config_.dataset_path); }

  static boost::json::value conversation(const std::string& asked, const std::string& answered) {
    namespace json = boost::json;
    return json::object{{"id", "x"},
                        {"conversations", json::array{json::object{{"from", "human"}, {"value", asked}},
                                                      json::object{{"from", "gpt"}, {"value", answered}}}}};
  }
  config::BenchConfig config_;
};

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += " word";
  return text;
}

TEST_F(FileDatasets, ShareGptUsesWhatHasTheRightLength) {
  config_.dataset = config::BenchDataset::kShareGpt;
  boost::json::array entries = {
      conversation(words(3), words(10)),       // prompt too short
      conversation(words(10), words(3)),       // answer too short
      conversation(words(1025), words(10)),    // prompt too long
      conversation(words(1000), words(1049)),  // too long together
      boost::json::object{{"conversations", boost::json::array{boost::json::object{{"value", words(9)}}}}},  // one turn
      boost::json::object{{"id", "empty"}},
      conversation(words(5), words(7)),
      conversation(words(6), words(8)),
  };
  write(boost::json::serialize(entries));
  std::multiset<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const Sample& sample : samples_of(config_)) lengths.emplace(sample.prompt_tokens, sample.output_tokens);
  EXPECT_EQ(lengths.size(), 4u) << "entries come again until there are enough";
  EXPECT_GE(lengths.count({5, 7}), 1u);
  EXPECT_GE(lengths.count({6, 8}), 1u);
  EXPECT_EQ(lengths.count({5, 7}) + lengths.count({6, 8}), 4u);
  config_.oversample = false;
  EXPECT_EQ(samples_of(config_).size(), 2u);
  config_.sharegpt_output_len = 33;
  config_.num_prompts = 8;
  const auto samples = samples_of(config_);
  EXPECT_EQ(samples.size(), 4u) << "the answer's own length and the sum with it do not matter then";
  for (const Sample& sample : samples) EXPECT_EQ(sample.output_tokens, 33);
}

TEST_F(FileDatasets, CustomPromptsAreSentAsTheyAre) {
  config_.dataset = config::BenchDataset::kCustom;
  config_.shuffle = false;
  config_.num_prompts = 2;
  write("{\"prompt\": \" word word\"}\n{\"prompt\": \"x\", \"more\": 1}\n");
  const auto samples = samples_of(config_);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].prompt, " word word");
  EXPECT_EQ(samples[0].prompt_tokens, 2);
  EXPECT_EQ(samples[0].output_tokens, 256);
  EXPECT_EQ(samples[1].prompt, "x");
}

TEST_F(FileDatasets, ErrorsNameTheEntry) {
  config_.dataset = config::BenchDataset::kCustom;
  config_.shuffle = false;
  write("{\"prompt\": \"x\"}\n{\"text\": \"y\"}\n");
  const auto samples = make_samples(config_, tokenizer());
  ASSERT_FALSE(samples);
  EXPECT_THAT(samples.error().message(), HasSubstr("entry 2"));
  EXPECT_THAT(samples.error().message(), HasSubstr("\"prompt\""));
  config_.dataset = config::BenchDataset::kShareGpt;
  write("[{\"id\": 1}]");
  EXPECT_THAT(make_samples(config_, tokenizer()).error().message(), HasSubstr("none of its 1 entries"));
}

}  // namespace
}  // namespace tandem::bench

// SPDX-License-Identifier: Apache-2.0
// Streaming decode with the real Qwen3 vocabulary, where 1,448 tokens are not whole characters (model_formats.md 3.4).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "unit/text/test_data.h"

namespace tandem::text {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

std::vector<std::string> chunks(const Ids& ids, bool skip_special_tokens = true, const Ids& prompt_tail = {}) {
  StreamDecoder decoder(real_tokenizer("qwen3"), skip_special_tokens, prompt_tail);
  std::vector<std::string> texts;
  for (const std::int32_t id : ids) texts.push_back(decoder.append(id));
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(StreamDecoder, HoldsUntilTheCharacterIsWhole) {
  EXPECT_THAT(chunks({9707, 11, 1879, 0}), ElementsAre("Hello", ",", " world", "!"));
  EXPECT_THAT(chunks({9284, 104, 254}), ElementsAre("", "", "🫠"));
  EXPECT_THAT(chunks({148738, 378, 235, 145836}), ElementsAre("🧑", "", "\u200d", "🚀"));
  // 30484 is a whole sign and the first two bytes of the next one.
  EXPECT_THAT(chunks({60096, 87244, 78368, 30484, 97, 34370}), ElementsAre("न", "म", "स", "\u094d", "त", "\u0947"));
}

TEST(StreamDecoder, DropsWhatIsIncompleteAtTheEnd) {
  EXPECT_THAT(chunks({9707, 9284, 104}), ElementsAre("Hello", "", ""));
  EXPECT_EQ(real_tokenizer("qwen3")->decode(Ids{9707, 9284, 104}, true), "Hello\uFFFD");
}

TEST(StreamDecoder, InvalidBytesInTheMiddleBecomeOneReplacement) {
  EXPECT_THAT(chunks({9284, 104, 9707}), ElementsAre("", "", "\uFFFDHello"));
  EXPECT_THAT(chunks({104, 9707}), ElementsAre("\uFFFD", "Hello"));  // a continuation byte alone
}

TEST(StreamDecoder, SpecialTokens) {
  const Ids ids = {151644, 872, 198, 151667, 271, 151668, 151645};
  EXPECT_THAT(chunks(ids, true), ElementsAre("", "user", "\n", "<think>", "\n\n", "</think>", ""));
  EXPECT_THAT(chunks(ids, false),
              ElementsAre("<|im_start|>", "user", "\n", "<think>", "\n\n", "</think>", "<|im_end|>"));
  // One in the middle of a character is as if it were not there, as in the whole decode.
  EXPECT_THAT(chunks({9284, 151645, 104, 254}, true), ElementsAre("", "", "", "🫠"));
}

TEST(StreamDecoder, PaddingRowsGiveNothing) {
  EXPECT_THAT(chunks({9284, 151700, 104, 254, -1}), ElementsAre("", "", "", "🫠", ""));
}

TEST(StreamDecoder, ACharacterSplitAtTheEndOfThePromptBelongsToTheOutput) {
  EXPECT_THAT(chunks({254, 0}, true, {9707, 9284, 104}), ElementsAre("🫠", "!"));
  EXPECT_THAT(chunks({9707}, true, {11, 1879}), ElementsAre("Hello"));
  EXPECT_THAT(chunks({9707}, true, {104, 254, 9284}), ElementsAre("\uFFFDHello"));
}

// For any ids: the stream's text is the whole decode without its incomplete tail, and every chunk is valid UTF-8.
TEST(StreamDecoder, EqualsWholeDecodeOverRandomIds) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  Ids fragments;
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!is_valid_utf8(tokenizer->token_bytes(id))) fragments.push_back(id);
  }
  std::mt19937 random(20261130);
  for (int round = 0; round < 3000; ++round) {
    const bool skip_special_tokens = random() % 2 == 0;
    Ids ids;
    const std::size_t length = 1 + random() % 30;
    for (std::size_t index = 0; index < length; ++index) {
      const bool fragment = random() % 3 != 0;  // plain ids alone would hardly ever split a character
      ids.push_back(fragment ? fragments[random() % fragments.size()] : static_cast<std::int32_t>(random() % 151936));
    }
    std::string bytes;
    for (const std::int32_t id : ids) {
      if (!skip_special_tokens || !tokenizer->is_special(id)) bytes += tokenizer->token_bytes(id);
    }
    const std::string tail = bytes.substr(complete_utf8_prefix(bytes));
    const std::vector<std::string> texts = chunks(ids, skip_special_tokens);
    for (const std::string& text : texts) ASSERT_TRUE(is_valid_utf8(text));
    ASSERT_EQ(joined(texts) + (tail.empty() ? "" : "\uFFFD"), tokenizer->decode(ids, skip_special_tokens)) << round;
  }
}

}  // namespace
}  // namespace tandem::text

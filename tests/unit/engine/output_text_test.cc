// SPDX-License-Identifier: Apache-2.0
// Text of a stream: stop strings over token borders, what is held back, incomplete characters, min_tokens.
#include "engine/output_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_metrics.h"
#include "unit/engine/fake_tokenizer.h"

namespace tandem::engine {
namespace {

using testing::FakeTokenizer;

class OutputTextTest : public ::testing::Test {
 protected:
  /// Feeds `pieces` as tokens; stops at a match. What was streamed is in `chunks`, the end (flushed) included.
  std::string stream(const std::vector<std::string>& pieces, const worker::SamplingParams& params,
                     const std::vector<std::string>& prompt_pieces = {}) {
    auto tokenizer = std::make_shared<FakeTokenizer>();
    std::vector<std::int32_t> prompt;
    for (const std::string& piece : prompt_pieces) prompt.push_back(tokenizer->add(piece));
    OutputText text(tokenizer, std::make_shared<worker::SamplingParams>(params), prompt);
    chunks_.clear();
    stop_.reset();
    std::string all;
    for (const std::string& piece : pieces) {
      const OutputText::Piece result = text.append(tokenizer->add(piece), false);
      chunks_.push_back(result.text);
      all += result.text;
      if (result.stop_matched) {
        stop_ = result.stop_matched;
        return all;
      }
    }
    chunks_.push_back(text.flush());
    return all + chunks_.back();
  }
  static worker::SamplingParams stop_at(std::vector<std::string> stop) {
    worker::SamplingParams params;
    params.stop = std::move(stop);
    return params;
  }

  std::vector<std::string> chunks_;
  std::optional<std::string> stop_;
};

TEST_F(OutputTextTest, WithoutStopStringsNothingIsHeldBack) {
  EXPECT_EQ(stream({"Hel", "lo", " you"}, {}), "Hello you");
  EXPECT_EQ(chunks_, (std::vector<std::string>{"Hel", "lo", " you", ""}));
}

TEST_F(OutputTextTest, StopStringOverTokenBorders) {
  EXPECT_EQ(stream({"ab", "cS", "T", "Oxyz"}, stop_at({"STO"})), "abc");
  EXPECT_EQ(stop_, "STO");
}

TEST_F(OutputTextTest, NeverLeaksAPrefixOfAStopString) {
  stream({"one\n", "two", "\n", "\n", "three"}, stop_at({"\n\n"}));
  EXPECT_EQ(stop_, "\n\n");
  std::string seen;
  for (const std::string& chunk : chunks_) {
    seen += chunk;
    EXPECT_TRUE(seen.empty() || !seen.ends_with("two\n"));
  }
  EXPECT_EQ(seen, "one\ntwo");
}

TEST_F(OutputTextTest, HeldBackTextComesAtTheEnd) {
  EXPECT_EQ(stream({"abST", "x", "ST"}, stop_at({"STOP"})), "abSTxST");
  EXPECT_FALSE(stop_);
  EXPECT_EQ(chunks_[0], "a") << "three characters may be the beginning";
  EXPECT_EQ(chunks_.back(), "xST");
}

TEST_F(OutputTextTest, FirstEntryInListOrderWins) {
  EXPECT_EQ(stream({"abcdef"}, stop_at({"de", "bc"})), "abc");
  EXPECT_EQ(stop_, "de");
  EXPECT_EQ(stream({"abcdef"}, stop_at({"zz", "bc", "ab"})), "a");
  EXPECT_EQ(stop_, "bc");
}

TEST_F(OutputTextTest, IncludedStopStringHoldsNothingBack) {
  worker::SamplingParams params = stop_at({"STOP"});
  params.include_stop_str_in_output = true;
  EXPECT_EQ(stream({"abST", "OPcd"}, params), "abSTOP");
  EXPECT_EQ(chunks_[0], "abST");
  EXPECT_EQ(stop_, "STOP");
}

TEST_F(OutputTextTest, HoldsBackCharactersNotBytes) {
  // Stop string of three characters (nine bytes): two characters are held back, none is cut.
  EXPECT_EQ(stream({"你", "好", "世", "界", "再"}, stop_at({"再见吧"})), "你好世界再");
  EXPECT_EQ(chunks_, (std::vector<std::string>{"", "", "你", "好", "世", "界再"}));
  EXPECT_EQ(stream({"你好", "再", "见", "吧"}, stop_at({"再见吧"})), "你好");
  EXPECT_EQ(stop_, "再见吧");
}

TEST_F(OutputTextTest, IncompleteCharactersAreHeldAndDroppedAtTheEnd) {
  const std::string smile = "\xF0\x9F\x98\x80";
  EXPECT_EQ(stream({"a" + smile.substr(0, 1), smile.substr(1, 2), smile.substr(3) + "b"}, {}), "a" + smile + "b");
  EXPECT_EQ(chunks_, (std::vector<std::string>{"a", "", smile + "b", ""}));
  EXPECT_EQ(stream({"a", smile.substr(0, 3)}, {}), "a");
}

TEST_F(OutputTextTest, CharacterSplitBetweenPromptAndOutput) {
  EXPECT_EQ(stream({"\xBD\xA0x"}, {}, {"a", "\xE4"}), "你x");
}

TEST_F(OutputTextTest, NoMatchWithinMinTokens) {
  worker::SamplingParams params = stop_at({"b"});
  params.min_tokens = 3;
  EXPECT_EQ(stream({"a", "b", "c", "d", "b", "e"}, params), "abcd");
  // A match that only ends after them counts.
  params = stop_at({"cd"});
  params.min_tokens = 3;
  EXPECT_EQ(stream({"a", "b", "c", "d"}, params), "ab");
  params.min_tokens = 4;
  EXPECT_EQ(stream({"a", "b", "c", "d", "e"}, params), "abcde");
}

TEST_F(OutputTextTest, HiddenTokensLeaveNoText) {
  auto tokenizer = std::make_shared<FakeTokenizer>();
  const std::int32_t word = tokenizer->add("word");
  const std::int32_t eos = tokenizer->add("</s>");
  const auto params = std::make_shared<worker::SamplingParams>(stop_at({"</s>"}));
  OutputText text(tokenizer, params, {});
  EXPECT_EQ(text.append(word, false).text, "w");
  const auto last = text.append(eos, true);
  EXPECT_FALSE(last.stop_matched);
  EXPECT_EQ(last.text + text.flush(), "ord");
}

TEST_F(OutputTextTest, RandomPiecesAgreeWithAWholeTextSearch) {
  std::uint32_t state = 12345;
  const auto random = [&](std::uint32_t bound) { return (state = state * 1664525U + 1013904223U) / 65536U % bound; };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> pieces;
    std::string whole;
    for (std::uint32_t i = 0, count = 1 + random(12); i < count; ++i) {
      std::string piece;
      for (std::uint32_t k = 0, length = random(4); k < length; ++k)
        piece += random(5) == 0 ? "好" : (random(2) == 0 ? "a" : "b");
      pieces.push_back(piece);
      whole += piece;
    }
    const std::string stop = random(2) == 0 ? "ab好a" : "bbab";
    const std::size_t at = whole.find(stop);
    EXPECT_EQ(stream(pieces, stop_at({stop})), whole.substr(0, at));
    EXPECT_EQ(stop_.has_value(), at != std::string::npos);
  }
}

TEST(Buckets, OneTwoFive) {
  EXPECT_EQ(buckets_1_2_5(1), (std::vector<double>{1}));
  EXPECT_EQ(buckets_1_2_5(60), (std::vector<double>{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(buckets_1_2_5(1000).back(), 1000.0);
}

}  // namespace
}  // namespace tandem::engine

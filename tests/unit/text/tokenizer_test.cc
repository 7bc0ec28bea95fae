// SPDX-License-Identifier: Apache-2.0
// The tokenizers of Qwen3 and Llama-3.1 against recorded ids (model_formats.md 3.2, 3.3), and what is refused.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/utf8.h"
#include "unit/text/test_data.h"

namespace tandem::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens = false) {
  const Result<std::vector<std::int32_t>> ids = tokenizer.encode(text, add_special_tokens);
  if (!ids) throw std::runtime_error(ids.error().to_string());
  return *ids;
}

class RecordedIds : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedIds, EncodeAndBack) {
  const std::string name = GetParam();
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer(name);
  int compared = 0;
  const boost::json::value cases = read_test_json("tests/golden/text/tokenizer_ids.json");
  for (const boost::json::value& entry : cases.as_array()) {
    const boost::json::value* recorded = entry.as_object().if_contains(name);
    if (recorded == nullptr) continue;
    const std::string text(entry.at("text").as_string());
    EXPECT_EQ(encode(*tokenizer, text), to_ids(*recorded)) << text;
    // Only NFC changes the text on its way.
    const std::string expected = name == "qwen3" && text == "e\u0301 vs \u00e9" ? "\u00e9 vs \u00e9" : text;
    EXPECT_EQ(tokenizer->decode(to_ids(*recorded), false), expected);
    ++compared;
  }
  EXPECT_EQ(compared, name == "qwen3" ? 21 : 15);
}

INSTANTIATE_TEST_SUITE_P(Real, RecordedIds, ::testing::Values("qwen3", "llama3_1"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Qwen3Tokenizer, AddedTokensAreSpecialOrNot) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  EXPECT_EQ(tokenizer->vocab_size(), 151669);
  EXPECT_EQ(tokenizer->piece_to_id("<|im_end|>"), 151645);
  EXPECT_EQ(tokenizer->id_to_piece(151645), "<|im_end|>");
  EXPECT_EQ(tokenizer->piece_to_id("no such token at all"), -1);
  for (std::int32_t id = 151643; id <= 151668; ++id) {
    const bool special = id <= 151656;
    EXPECT_EQ(tokenizer->is_special(id), special) << id;
  }
  EXPECT_FALSE(tokenizer->is_special(9707));
  const std::vector<std::int32_t> ids = {151644, 872, 198, 151667, 271, 151668, 151645};
  EXPECT_EQ(tokenizer->decode(ids, true), "user\n<think>\n\n</think>");
  EXPECT_EQ(tokenizer->decode(ids, false), "<|im_start|>user\n<think>\n\n</think><|im_end|>");
}

TEST(Qwen3Tokenizer, BytesOfTokensThatAreNotCharacters) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  EXPECT_EQ(tokenizer->token_bytes(30484), "\xe0\xa5\x8d\xe0\xa4");
  EXPECT_EQ(tokenizer->token_bytes(9284), "\xf0\x9f");
  EXPECT_EQ(tokenizer->token_bytes(9707), "Hello");
  EXPECT_EQ(tokenizer->token_bytes(220), " ");
  EXPECT_EQ(tokenizer->id_to_piece(220), "\u0120");
  int not_utf8 = 0;
  for (std::int32_t id = 0; id < 151643; ++id) not_utf8 += is_valid_utf8(tokenizer->token_bytes(id)) ? 0 : 1;
  EXPECT_EQ(not_utf8, 1448);
}

TEST(Qwen3Tokenizer, PaddingRowsAndWildIdsDecodeToNothing) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  for (const std::int32_t id : {151669, 151935, 2147483647, -1, -2147483647}) {
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_EQ(tokenizer->id_to_piece(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
  }
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{9707, 151700, 11, -5, 1879}, false), "Hello, world");
}

TEST(Qwen3Tokenizer, NoSpecialPrefix) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  EXPECT_THAT(encode(*tokenizer, "Hello", true), ElementsAre(9707));
  EXPECT_THAT(encode(*tokenizer, "", true), ElementsAre());
}

TEST(Llama3Tokenizer, BeginOfTextIsPrepended) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("llama3_1");
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  EXPECT_THAT(encode(*tokenizer, "Hello, world!", true), ElementsAre(128000, 9906, 11, 1917, 0));
  EXPECT_THAT(encode(*tokenizer, "", true), ElementsAre(128000));
  EXPECT_TRUE(tokenizer->is_special(128000));
}

TEST(Tokenizer, InvalidUtf8IsAnError) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  const Result<std::vector<std::int32_t>> ids = tokenizer->encode("ab\xff", false);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(ids.error().message(), HasSubstr("byte 2"));
}

TEST(Tokenizer, ThreadsAgree) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  const auto text_of = [](int number) {
    std::string text;
    for (int word = 0; word < 50; ++word) text += " word" + std::to_string(number * 131 + word * 7) + " 中文" + "naïve";
    return text;
  };
  std::vector<std::vector<std::int32_t>> expected;
  for (int number = 0; number < 20; ++number) expected.push_back(encode(*tokenizer, text_of(number)));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int number = 0; number < 20; ++number) {
        const Result<std::vector<std::int32_t>> ids = tokenizer->encode(text_of(number), false);
        if (!ids || *ids != expected[static_cast<std::size_t>(number)]) ++wrong[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// Linear or nearly so: a quadratic merge of 100,000 letters would take minutes. The factor allows a busy machine.
class LongPieces : public ::testing::TestWithParam<std::string> {};

TEST_P(LongPieces, AreNotQuadratic) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  const auto timed = [&](std::size_t repeats) {
    std::string text;
    for (std::size_t index = 0; index < repeats; ++index) text += GetParam();
    double best = 1e9;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::clock_t start = std::clock();  // CPU time, which other processes do not lengthen
      EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text), false), text);
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  const double short_text = timed(10'000);
  const double long_text = timed(100'000);
  EXPECT_LT(long_text, 40 * short_text + 0.05);
  EXPECT_LT(long_text, 5.0);
}

INSTANTIATE_TEST_SUITE_P(Repeated, LongPieces, ::testing::Values("a", " ", "\n", "!", "ab", "7"),
                         [](const auto& test) { return "case" + std::to_string(test.index); });

TEST(Tokenizer, EndlessWhiteSpaceIsRefused) {
  const std::shared_ptr<const Tokenizer> tokenizer = real_tokenizer("qwen3");
  const Result<std::vector<std::int32_t>> ids = tokenizer->encode(std::string(600'000, ' ') + "x", false);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code(), Code::kInvalidArgument);
  const std::string just_below(499'000, ' ');
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, just_below + "x"), false), just_below + "x");
}

TEST(Tokenizer, BrokenFilesAreNamed) {
  const Result<std::shared_ptr<const Tokenizer>> missing = Tokenizer::from_file("no/such/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("no/such/tokenizer.json"));
  const Result<std::shared_ptr<const Tokenizer>> folder = Tokenizer::from_file("tests");
  ASSERT_FALSE(folder);
  for (const char* json : {"", "{", "null", "{}", R"({"model": {"type": "BPE"}})",
                           R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})"}) {
    const Result<std::shared_ptr<const Tokenizer>> broken = Tokenizer::from_json(json);
    ASSERT_FALSE(broken) << json;
    EXPECT_EQ(broken.error().code(), Code::kInvalidArgument) << broken.error().to_string();
    EXPECT_THAT(broken.error().message(), HasSubstr("tokenizer.json"));
  }
}

std::string tiny_json(const std::string& decoder, const std::string& merges, std::int64_t id = 2) {
  return R"({"version": "1.0", "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst",
      "stride": 0}, "padding": null, "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "post_processor": null, "decoder": )" +
         decoder + R"(, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": )" + std::to_string(id) +
         R"(}, "merges": )" + merges + "}}";
}

TEST(Tokenizer, MergesAsPairsOrStringsAndNoTruncation) {
  const std::string byte_level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  for (const char* merges : {R"(["a b"])", R"([["a", "b"]])"}) {
    const Result<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_json(tiny_json(byte_level, merges));
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    EXPECT_THAT(encode(**tokenizer, "abbaab"), ElementsAre(2, 1, 0, 2));
  }
}

TEST(Tokenizer, OtherKindsAreUnsupported) {
  const Result<std::shared_ptr<const Tokenizer>> tokenizer =
      Tokenizer::from_json(tiny_json(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})", "[]"));
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code(), Code::kUnsupported);
}

TEST(Tokenizer, WildIdsAreRefused) {
  const Result<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_json(
      tiny_json(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})", "[]",
                4'000'000'000));
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("4000000000"));
}

}  // namespace
}  // namespace tandem::text

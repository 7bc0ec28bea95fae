// SPDX-License-Identifier: Apache-2.0
// Tokenizers from GGUF metadata: small vocabularies of our own, and the whole Qwen3 one taken through the GGUF form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "unit/text/test_data.h"

namespace tandem::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::string utf8_of(std::uint32_t code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0U | (code_point >> 6)), static_cast<char>(0x80U | (code_point & 0x3fU))};
}

/// The character that stands for a byte in a byte-level vocabulary.
std::string letter_of(int byte) {
  const auto stands_for_itself = [](int value) {
    return (value >= 33 && value <= 126) || (value >= 161 && value <= 172) || value >= 174;
  };
  if (stands_for_itself(byte)) return utf8_of(static_cast<std::uint32_t>(byte));
  std::uint32_t next = 0x100;
  for (int other = 0; other < byte; ++other) next += stands_for_itself(other) ? 0 : 1;
  return utf8_of(next);
}

/// Two control tokens, the 256 bytes, a few merged pieces, a user-defined token and a padding row.
GgufVocabulary small_vocabulary(const std::string& pre) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  const auto add = [&](const std::string& token, std::int32_t type) {
    vocabulary.tokens.push_back(token);
    vocabulary.token_types.push_back(type);
  };
  add("<|endoftext|>", 3);
  add("<|im_start|>", 3);
  for (int byte = 0; byte < 256; ++byte) add(letter_of(byte), 1);
  add("12", 1);        // 258
  add("123", 1);       // 259
  add("Ġ12", 1);       // 260
  add("Ã©", 1);        // 261: é
  add("ab", 1);        // 262
  add("abc", 1);       // 263, not reachable by merges
  add("<think>", 4);   // 264
  add("[PAD265]", 5);  // 265
  vocabulary.merges = {"1 2", "12 3", "Ġ 12", "Ã ©", "a b"};
  return vocabulary;
}

std::int32_t byte_id(char byte) { return 2 + static_cast<std::uint8_t>(byte); }

std::shared_ptr<const Tokenizer> built(const GgufVocabulary& vocabulary) {
  Result<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_gguf(vocabulary);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().to_string());
  return *tokenizer;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens = false) {
  const Result<Ids> ids = tokenizer.encode(text, add_special_tokens);
  if (!ids) throw std::runtime_error(ids.error().to_string());
  return *ids;
}

TEST(GgufTokenizer, DigitsAloneInSmollm) {
  const auto tokenizer = built(small_vocabulary("smollm"));
  EXPECT_EQ(encode(*tokenizer, " 123"), (Ids{byte_id(' '), byte_id('1'), byte_id('2'), byte_id('3')}));
  EXPECT_THAT(encode(*tokenizer, "abé"), ElementsAre(262, 261));
}

TEST(GgufTokenizer, DigitsTogetherInGpt2) {
  for (const char* pre : {"default", "gpt-2", ""}) {
    const auto tokenizer = built(small_vocabulary(pre));
    EXPECT_EQ(encode(*tokenizer, " 12"), (Ids{260})) << pre;
  }
}

TEST(GgufTokenizer, DigitsAloneAndNfcInQwen2) {
  const auto tokenizer = built(small_vocabulary("qwen2"));
  EXPECT_EQ(encode(*tokenizer, "123"), (Ids{byte_id('1'), byte_id('2'), byte_id('3')}));
  EXPECT_THAT(encode(*tokenizer, "e\u0301"), ElementsAre(261));
  EXPECT_EQ(encode(*built(small_vocabulary("smollm")), "e\u0301").size(), 3U);
}

TEST(GgufTokenizer, ThreeDigitsAndWholePiecesInLlama) {
  const auto tokenizer = built(small_vocabulary("llama-bpe"));
  EXPECT_EQ(encode(*tokenizer, "12312"), (Ids{259, 258}));
  EXPECT_THAT(encode(*tokenizer, "abc"), ElementsAre(263));  // merges are ignored for a piece of the vocabulary
  EXPECT_EQ(encode(*built(small_vocabulary("smollm")), "abc"), (Ids{262, byte_id('c')}));
}

TEST(GgufTokenizer, ControlAndUserDefinedTokens) {
  const auto tokenizer = built(small_vocabulary("smollm"));
  EXPECT_THAT(encode(*tokenizer, "<|im_start|>ab<think>ab<|endoftext|>"), ElementsAre(1, 262, 264, 262, 0));
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(264));
  EXPECT_FALSE(tokenizer->is_special(262));
  EXPECT_EQ(tokenizer->decode(Ids{1, 262, 264, 0}, true), "ab<think>");
  EXPECT_EQ(tokenizer->decode(Ids{1, 262, 264, 0}, false), "<|im_start|>ab<think><|endoftext|>");
  EXPECT_EQ(tokenizer->piece_to_id("<think>"), 264);
}

TEST(GgufTokenizer, PaddingRowsDecodeToNothing) {
  const auto tokenizer = built(small_vocabulary("smollm"));
  EXPECT_EQ(tokenizer->vocab_size(), 266);
  EXPECT_EQ(tokenizer->decode(Ids{262, 265, 262}, false), "abab");
  EXPECT_EQ(tokenizer->id_to_piece(265), "[PAD265]");
}

TEST(GgufTokenizer, EveryByteRoundTrips) {
  const auto tokenizer = built(small_vocabulary("smollm"));
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokenizer->token_bytes(2 + byte), std::string(1, static_cast<char>(byte)));
  }
  const std::string text = "What is the capital of France?\n\t 12 é 中 🚀 \x01";
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text), false), text);
}

TEST(GgufTokenizer, BosIsPrependedWhenAskedFor) {
  GgufVocabulary vocabulary = small_vocabulary("smollm");
  vocabulary.bos_id = 1;
  EXPECT_THAT(encode(*built(vocabulary), "ab", true), ElementsAre(262));
  vocabulary.add_bos = true;
  EXPECT_THAT(encode(*built(vocabulary), "ab", true), ElementsAre(1, 262));
  EXPECT_THAT(encode(*built(vocabulary), "ab", false), ElementsAre(262));
  EXPECT_THAT(encode(*built(vocabulary), "", true), ElementsAre(1));
}

TEST(GgufTokenizer, TypesMayBeAbsent) {
  GgufVocabulary vocabulary = small_vocabulary("smollm");
  vocabulary.token_types.clear();
  EXPECT_FALSE(built(vocabulary)->is_special(0));
}

TEST(GgufTokenizer, WhatIsWrongIsNamed) {
  const auto error_of = [](const auto& change) {
    GgufVocabulary vocabulary = small_vocabulary("smollm");
    change(vocabulary);
    const Result<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_gguf(vocabulary);
    return tokenizer ? Status() : tokenizer.error();
  };
  Status status = error_of([](GgufVocabulary& vocabulary) { vocabulary.pre = "tekken"; });
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("tekken"));
  status = error_of([](GgufVocabulary& vocabulary) { vocabulary.model = "llama"; });
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("\"llama\""));
  status = error_of([](GgufVocabulary& vocabulary) { vocabulary.merges[1] = "one two three"; });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("merges[1]"));
  status = error_of([](GgufVocabulary& vocabulary) { vocabulary.merges[2] = "x y"; });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("xy"));
  status = error_of([](GgufVocabulary& vocabulary) { vocabulary.tokens[5] = "\xff"; });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tokens[5]"));
  status = error_of([](GgufVocabulary& vocabulary) { vocabulary.token_types.pop_back(); });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("265"));
  status = error_of([](GgufVocabulary& vocabulary) {
    vocabulary.add_bos = true;
    vocabulary.bos_id = 99999;
  });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("99999"));
  status = error_of([](GgufVocabulary& vocabulary) {
    vocabulary.tokens.clear();
    vocabulary.token_types.clear();
  });
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

/// What a converter writes into a GGUF file for a tokenizer.json.
GgufVocabulary converted(const std::string& path, const std::string& pre) {
  const boost::json::value file = read_test_json(path);
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  const auto set = [&](std::int64_t id, std::string_view token, std::int32_t type) {
    const auto index = static_cast<std::size_t>(id);
    if (vocabulary.tokens.size() <= index) {
      vocabulary.tokens.resize(index + 1);
      vocabulary.token_types.resize(index + 1, 5);
    }
    vocabulary.tokens[index] = token;
    vocabulary.token_types[index] = type;
  };
  for (const auto& [token, id] : file.at("model").at("vocab").as_object()) set(id.as_int64(), token, 1);
  for (const boost::json::value& token : file.at("added_tokens").as_array()) {
    set(token.at("id").as_int64(), token.at("content").as_string(), token.at("special").as_bool() ? 3 : 4);
  }
  for (const boost::json::value& merge : file.at("model").at("merges").as_array()) {
    if (merge.is_string()) {
      vocabulary.merges.emplace_back(merge.as_string());
    } else {
      vocabulary.merges.push_back(std::string(merge.at(0).as_string()) + " " + std::string(merge.at(1).as_string()));
    }
  }
  return vocabulary;
}

TEST(GgufTokenizer, SameIdsAsTheTokenizerJson) {
  const std::vector<std::pair<std::string, std::string>> models = {{"qwen3", "qwen2"}, {"llama3_1", "llama-bpe"}};
  const boost::json::value cases = read_test_json("tests/golden/text/tokenizer_ids.json");
  for (const auto& [name, pre] : models) {
    const std::shared_ptr<const Tokenizer> original = real_tokenizer(name);
    const std::shared_ptr<const Tokenizer> tokenizer =
        built(converted(".cache/tokenizers/" + name + "/tokenizer.json", pre));
    ASSERT_EQ(tokenizer->vocab_size(), original->vocab_size());
    for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      ASSERT_EQ(tokenizer->token_bytes(id), original->token_bytes(id)) << id;
      ASSERT_EQ(tokenizer->is_special(id), original->is_special(id)) << id;
    }
    for (const boost::json::value& entry : cases.as_array()) {
      const std::string text(entry.at("text").as_string());
      EXPECT_EQ(encode(*tokenizer, text), encode(*original, text)) << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace tandem::text

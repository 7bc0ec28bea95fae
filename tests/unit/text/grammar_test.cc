// SPDX-License-Identifier: Apache-2.0
// Grammars: which texts they let through, token by token, and what is no grammar. Tokens are bytes, so that every
// place in a text is a place between tokens.
#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "unit/api/api_support.h"

namespace tandem::text {
namespace {

namespace json = boost::json;
using test::ByteTokenizer;
using ::testing::HasSubstr;

bool allows(const std::vector<std::uint32_t>& mask, std::int32_t token) {
  return (mask.at(static_cast<std::size_t>(token) / 32) >> (token % 32) & 1U) != 0;
}

class GrammarTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrammarMatcher> start(GrammarKind kind, std::string_view source) {
    auto grammar = compiler_.compile(kind, source);
    if (!grammar) ADD_FAILURE() << source << ": " << grammar.error().message();
    return grammar ? std::move(*(*grammar)->start()) : nullptr;
  }
  /// Whether the grammar lets the text through, and it may end there.
  bool matches(GrammarKind kind, std::string_view source, std::string_view text) {
    const auto matcher = start(kind, source);
    if (!matcher) return false;
    for (const char c : text) {
      const auto token = static_cast<std::int32_t>(static_cast<unsigned char>(c));
      if (matcher->finished() || !allows(*matcher->mask(), token)) return false;
      if (!matcher->accept(token)) return false;
    }
    return matcher->finished() || allows(*matcher->mask(), ByteTokenizer::kEos);
  }
  std::string error_of(GrammarKind kind, std::string_view source) {
    const auto grammar = compiler_.compile(kind, source);
    EXPECT_FALSE(grammar) << source;
    if (grammar) return "";
    EXPECT_EQ(grammar.error().code(), Code::kInvalidArgument);
    return grammar.error().message();
  }

  GrammarCompiler compiler_{std::make_shared<ByteTokenizer>(), ByteTokenizer::kVocabSize + 40, ByteTokenizer::kEos};
};

TEST_F(GrammarTest, LetsThroughWhatMatches) {
  EXPECT_TRUE(matches(GrammarKind::kRegex, "[0-9]{3}-[a-z]+", "123-abc"));
  EXPECT_FALSE(matches(GrammarKind::kRegex, "[0-9]{3}-[a-z]+", "123-"));
  EXPECT_FALSE(matches(GrammarKind::kRegex, "[0-9]{3}-[a-z]+", "12a"));
  EXPECT_TRUE(matches(GrammarKind::kChoice, R"(["yes","no, \"not\" 日本"])", "no, \"not\" 日本"));
  EXPECT_FALSE(matches(GrammarKind::kChoice, R"(["yes","no"])", "n"));
  const char* schema = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","y"]}},
                           "required":["a"],"additionalProperties":false})";
  EXPECT_TRUE(matches(GrammarKind::kJsonSchema, schema, R"({"a": -5, "b": "y"})"));
  EXPECT_FALSE(matches(GrammarKind::kJsonSchema, schema, R"({"b": "y"})"));
  EXPECT_FALSE(matches(GrammarKind::kJsonSchema, schema, R"({"a": 1.5})"));
  EXPECT_TRUE(matches(GrammarKind::kJsonSchema, R"({"type":"object"})", R"({"any": [1, null, {"x": "é"}]})"));
  EXPECT_TRUE(matches(GrammarKind::kGrammar, "start: \"a\" num\nnum: /[0-9]+/", "a12"));
}

TEST_F(GrammarTest, ReadsGbnf) {
  const char* gbnf = "root ::= \"SELECT \" col-name (\", \" col-name)* # columns\ncol-name ::= [a-z_/]+\n";
  EXPECT_TRUE(matches(GrammarKind::kGrammar, gbnf, "SELECT a_b, c"));
  EXPECT_FALSE(matches(GrammarKind::kGrammar, gbnf, "SELECT A"));
  EXPECT_THAT(error_of(GrammarKind::kGrammar, "rule ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(error_of(GrammarKind::kGrammar, "root ::= \"a"), HasSubstr("not closed"));
}

TEST_F(GrammarTest, SaysWhatIsNoGrammar) {
  EXPECT_NE(error_of(GrammarKind::kRegex, "[a-"), "");
  EXPECT_THAT(error_of(GrammarKind::kJsonSchema, R"({"type":"thing"})"), HasSubstr("thing"));
  EXPECT_NE(error_of(GrammarKind::kJsonSchema, "not JSON"), "");
  EXPECT_NE(error_of(GrammarKind::kGrammar, "start: nothing_there"), "");
  EXPECT_NE(error_of(GrammarKind::kGrammar, ""), "");
}

TEST_F(GrammarTest, AMatcherSaysWhenItIsOver) {
  const auto matcher = start(GrammarKind::kChoice, R"(["ab"])");
  EXPECT_FALSE(matcher->finished());
  EXPECT_FALSE(matcher->accept('x'));
  const auto another = start(GrammarKind::kChoice, R"(["ab"])");
  EXPECT_TRUE(another->accept('a'));
  EXPECT_TRUE(another->accept('b'));
  EXPECT_TRUE(another->finished());
}

TEST_F(GrammarTest, MatchersOfOneGrammarAreIndependent) {
  const auto grammar = compiler_.compile(GrammarKind::kRegex, "a|b");
  const auto one = *(*grammar)->start();
  EXPECT_TRUE(one->accept('a'));
  const auto two = *(*grammar)->start();
  EXPECT_TRUE(allows(*two->mask(), 'b'));
  EXPECT_FALSE(allows(*two->mask(), ByteTokenizer::kBos)) << "special tokens are no text";
  EXPECT_EQ(two->mask()->size(), (ByteTokenizer::kVocabSize + 40 + 31) / 32U);
}

/// Whatever tokens are drawn, what comes out is an instance of the schema.
TEST_F(GrammarTest, AnyDrawGivesJsonOfTheSchema) {
  const char* schema = R"({"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99},
    "tags":{"type":"array","items":{"type":"string","maxLength":3},"maxItems":2},"ok":{"type":"boolean"}},
    "required":["n","tags","ok"],"additionalProperties":false,"x-guidance":{"whitespace_flexible":false}})";
  std::mt19937 random(7);
  for (int run = 0; run < 50; ++run) {
    const auto matcher = start(GrammarKind::kJsonSchema, schema);
    std::string text;
    while (!matcher->finished() && text.size() < 4096) {
      const std::vector<std::uint32_t> mask = *matcher->mask();
      std::vector<std::int32_t> choices;
      for (std::int32_t id = 0; id < ByteTokenizer::kVocabSize; ++id)
        if (allows(mask, id)) choices.push_back(id);
      ASSERT_FALSE(choices.empty()) << text;
      const std::int32_t token = choices[random() % choices.size()];
      if (token == ByteTokenizer::kEos) break;
      ASSERT_TRUE(matcher->accept(token));
      text += static_cast<char>(token);
    }
    boost::system::error_code error;
    const json::value value = json::parse(text, error);
    ASSERT_FALSE(error) << text;
    EXPECT_TRUE(value.at("n").is_int64() && value.at("ok").is_bool() && value.at("tags").as_array().size() <= 2);
  }
}

}  // namespace
}  // namespace tandem::text

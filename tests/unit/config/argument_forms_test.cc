// SPDX-License-Identifier: Apache-2.0
#include "config/argument_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

FlagForms sample_forms() {
  FlagForms forms;
  forms.flags = {
      {"--max-num-seqs"},
      {"--max-num-batched-tokens"},
      {"--max-model-len", Arity::kOne, false, true},
      {"--enable-prefix-caching", Arity::kNone, true},
      {"--served-model-name", Arity::kMany},
      {"--data-parallel-size"},
      {"--data-parallel-size-local"},
      {"--kv-transfer-config", Arity::kOne, false, true, true},
      {"--compilation-config", Arity::kOne, false, false, true},
  };
  forms.short_forms = {{"-dp", "--data-parallel-size"}, {"-O", "--compilation-config"}};
  return forms;
}

Result<Arguments> canonical(const std::vector<std::string>& arguments) {
  return canonical_arguments(arguments, sample_forms());
}

std::vector<std::string> flags_of(const std::vector<std::string>& arguments) {
  auto result = canonical(arguments);
  EXPECT_TRUE(result) << result.error().message();
  return result ? result->canonical : std::vector<std::string>();
}

TEST(ArgumentForms, UnderscoresInNamesBecomeDashesAndValuesStay) {
  EXPECT_THAT(flags_of({"--max-num_seqs", "16"}), ElementsAre("--max-num-seqs=16"));
  EXPECT_THAT(flags_of({"--max_num_seqs=16"}), ElementsAre("--max-num-seqs=16"));
  EXPECT_THAT(flags_of({"--served_model_name", "a_b"}), ElementsAre("--served-model-name", "a_b"));
}

TEST(ArgumentForms, UniquePrefixesAreAcceptedAndExactNamesWin) {
  EXPECT_THAT(flags_of({"--max-num-b", "8"}), ElementsAre("--max-num-batched-tokens=8"));
  EXPECT_THAT(flags_of({"--data-parallel-size", "2"}), ElementsAre("--data-parallel-size=2"));
  EXPECT_THAT(flags_of({"--no-enable"}), ElementsAre("--no-enable-prefix-caching"));
  EXPECT_THAT(canonical({"--max-num", "8"}).error().message(),
              HasSubstr("ambiguous option: --max-num could match --max-num-seqs, --max-num-batched-tokens"));
}

TEST(ArgumentForms, RepeatedFlagsReplace) {
  EXPECT_THAT(flags_of({"--max-num-seqs", "1", "--max-num-seqs", "2"}), ElementsAre("--max-num-seqs=2"));
  EXPECT_THAT(flags_of({"--enable-prefix-caching", "--no-enable-prefix-caching"}),
              ElementsAre("--no-enable-prefix-caching"));
}

TEST(ArgumentForms, NoneAndEmptyMeanNotGivenWhereAllowed) {
  EXPECT_THAT(flags_of({"--max-model-len", "None"}), IsEmpty());
  EXPECT_THAT(flags_of({"--max-model-len="}), IsEmpty());
}

TEST(ArgumentForms, DottedJsonMerges) {
  EXPECT_THAT(flags_of({"--kv_transfer_config.kv_role", "kv_both", "--kv-transfer-config.extra.tp_size=2",
                        "--kv-transfer-config.list+", "a,1"}),
              ElementsAre(R"(--kv-transfer-config={"kv_role":"kv_both","extra":{"tp_size":2},"list":["a",1]})"));
  EXPECT_THAT(flags_of({"--kv-transfer-config", "{\"x\":1}", "--kv-transfer-config.y", "2"}),
              ElementsAre(R"(--kv-transfer-config={"y":2})"));
  EXPECT_THAT(canonical({"--max-num-seqs.a", "1"}).error().message(), HasSubstr("not a JSON flag"));
}

TEST(ArgumentForms, ShortForms) {
  EXPECT_THAT(flags_of({"-dp", "2"}), ElementsAre("--data-parallel-size=2"));
  EXPECT_THAT(flags_of({"-O3"}), ElementsAre("--compilation-config=3"));
  EXPECT_THAT(flags_of({"-O", "3"}), ElementsAre("--compilation-config=3"));
  EXPECT_THAT(flags_of({"-O.level", "3"}), ElementsAre(R"(--compilation-config={"level":3})"));
  EXPECT_FALSE(canonical({"-x"}));
}

TEST(ArgumentForms, NegativeNumbersAreValues) {
  EXPECT_THAT(flags_of({"--max-model-len", "-1"}), ElementsAre("--max-model-len=-1"));
}

TEST(ArgumentForms, MissingValuesAndSurplusValuesAreErrors) {
  EXPECT_THAT(canonical({"--max-num-seqs"}).error().message(),
              HasSubstr("argument --max-num-seqs: expected one argument"));
  EXPECT_THAT(canonical({"--max-num-seqs", "--enable-prefix-caching"}).error().message(),
              HasSubstr("expected one argument"));
  EXPECT_THAT(canonical({"--served-model-name"}).error().message(), HasSubstr("expected at least one argument"));
  EXPECT_THAT(canonical({"--enable-prefix-caching=yes"}).error().message(), HasSubstr("takes no value"));
}

TEST(ArgumentForms, UnknownFlagsNameTheNearest) {
  EXPECT_THAT(canonical({"--max-modle-len", "8"}).error().message(),
              HasSubstr("unrecognized arguments: --max-modle-len (did you mean --max-model-len?)"));
  EXPECT_THAT(canonical({"--zzzzzzzzzzzzzzzzzzz"}).error().message(), testing::Not(HasSubstr("did you mean")));
}

TEST(ArgumentForms, PositionalsAndRest) {
  auto result = canonical({"model", "--max-num-seqs", "1", "--", "--anything", "x"});
  ASSERT_TRUE(result);
  EXPECT_THAT(result->positional, ElementsAre("model"));
  EXPECT_THAT(result->rest, ElementsAre("--anything", "x"));
}

}  // namespace
}  // namespace tandem::config

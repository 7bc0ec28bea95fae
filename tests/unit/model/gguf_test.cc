// SPDX-License-Identifier: Apache-2.0
// GGUF files written by the tool's library and read back, and hostile ones made by hand.
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "make_model/gguf_writer.h"
#include "model/generator.h"
#include "support/model_support.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::ElementsAre;
using testing::GoldenModel;
using ::testing::HasSubstr;
using testing::Logits;
using testing::ModelRunner;
using testing::TempFolder;

Logits logits(const Checkpoint& checkpoint, const testing::Tokens& prompt) {
  ModelOptions options;
  options.compute = ComputeType::kFloat32;
  options.max_positions = 128;
  return ModelRunner(checkpoint, options).all_logits(prompt).back();
}

Result<void> write(const Checkpoint& source, const std::string& path, TensorType type) {
  tools::GgufOptions options;
  options.type = type;
  TANDEM_ASSIGN(options.vocabulary, tools::byte_vocabulary(source.config().vocab_size));
  return tools::write_gguf(source, path, options);
}

class GgufRoundTrip : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufRoundTrip, F32IsExact) {
  const GoldenModel golden = testing::load_golden(GetParam());
  const auto source = make_synthetic_checkpoint(golden.config, golden.salt);
  TempFolder folder;
  for (const TensorType type : {TensorType::kF32, TensorType::kBf16}) {
    ASSERT_TRUE(write(*source, folder.file("m.gguf"), type).has_value());
    const auto read = Checkpoint::open(folder.file("m.gguf"), {});
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ((*read)->config().architecture, golden.config.architecture);
    EXPECT_EQ((*read)->config().tie_word_embeddings, golden.config.tie_word_embeddings);
    EXPECT_EQ((*read)->config().interleaved_qk, golden.config.family == Family::kLlama);
    // Frequencies go through float32 in a GGUF file.
    EXPECT_LE(testing::max_abs_difference(logits(**read, golden.prompts.at("P100")), golden.last_logits.at("P100")),
              2e-5F);
  }
}

// T2b has dense layers besides those with experts, which no GGUF file can have.
std::vector<std::string> gguf_names() {
  std::vector<std::string> names = testing::golden_names();
  std::erase(names, "T2b-qwen3moe-mixed");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, GgufRoundTrip, ::testing::ValuesIn(gguf_names()),
                         [](const ::testing::TestParamInfo<std::string>& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufExperts, WhatTheFormatCannotSayIsRefused) {
  const GoldenModel golden = testing::load_golden("T2b-qwen3moe-mixed");
  TempFolder folder;
  const auto written =
      write(*make_synthetic_checkpoint(golden.config, golden.salt), folder.file("m.gguf"), TensorType::kF32);
  ASSERT_FALSE(written.has_value());
  EXPECT_THAT(written.error().message(), HasSubstr("every layer"));
}

class Gguf : public ::testing::Test {
 protected:
  Gguf()
      : golden_(testing::load_golden("T7-qwen3-2kv")),
        source_(make_synthetic_checkpoint(golden_.config, golden_.salt)) {}

  // A file of the given bytes after "GGUF" and the version.
  static std::string header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    std::string text = "GGUF";
    append(text, version);
    append(text, tensors);
    append(text, keys);
    return text;
  }
  template <class T>
  static void append(std::string& text, T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void append_string(std::string& text, const std::string& value) {
    append<std::uint64_t>(text, value.size());
    text += value;
  }
  static std::string tensor_info(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                                 std::uint64_t offset) {
    std::string text;
    append_string(text, name);
    append<std::uint32_t>(text, static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t size : dims) append(text, size);
    append(text, type);
    append(text, offset);
    return text;
  }
  static Result<GgufFile> parse(const std::string& text) {
    return parse_gguf({reinterpret_cast<const std::byte*>(text.data()), text.size()}, "x.gguf");
  }
  static std::string error(const std::string& text) {
    const auto parsed = parse(text);
    EXPECT_FALSE(parsed.has_value());
    return parsed ? "" : parsed.error().message();
  }
  std::string open_error(const json::object& overrides = {}) const {
    const auto opened = Checkpoint::open(folder_.file("m.gguf"), overrides);
    EXPECT_FALSE(opened.has_value());
    return opened ? "" : opened.error().message();
  }

  GoldenModel golden_;
  std::unique_ptr<Checkpoint> source_;
  TempFolder folder_;
};

TEST_F(Gguf, QuantisedTypesStayClose) {
  const Logits exact = logits(*source_, golden_.prompts.at("P8"));
  const std::pair<TensorType, double> bounds[] = {{TensorType::kF16, 1e-3},  {TensorType::kQ8_0, 0.03},
                                                  {TensorType::kQ5_1, 0.16}, {TensorType::kQ5_0, 0.2},
                                                  {TensorType::kQ4_1, 0.35}, {TensorType::kQ4_0, 0.4}};
  double previous = 0;
  for (const auto& [type, bound] : bounds) {
    ASSERT_TRUE(write(*source_, folder_.file("m.gguf"), type).has_value());
    const auto read = Checkpoint::open(folder_.file("m.gguf"), {});
    ASSERT_TRUE(read.has_value()) << read.error().message();
    const double difference = testing::relative_l2(logits(**read, golden_.prompts.at("P8")), exact);
    EXPECT_LT(difference, bound) << tensor_type_name(type);
    if (type == TensorType::kF16 || type == TensorType::kQ8_0) {
      EXPECT_GE(difference, previous) << tensor_type_name(type);
    }
    previous = difference;
  }
}

TEST_F(Gguf, AFolderWithOneFileAndWithTwo) {
  ASSERT_TRUE(write(*source_, folder_.file("m.gguf"), TensorType::kQ8_0).has_value());
  EXPECT_TRUE(Checkpoint::open(folder_.path(), {}).has_value());
  fs::copy_file(folder_.file("m.gguf"), folder_.file("n.gguf"));
  EXPECT_THAT(Checkpoint::open(folder_.path(), {}).error().message(), HasSubstr("2 .gguf files"));
}

TEST_F(Gguf, TokenizerTemplateAndEndTokens) {
  ASSERT_TRUE(write(*source_, folder_.file("m.gguf"), TensorType::kQ8_0).has_value());
  const auto checkpoint = *Checkpoint::open(folder_.file("m.gguf"), {});
  const TokenizerSource tokenizer = checkpoint->tokenizer_source();
  EXPECT_EQ(tokenizer.gguf_model, "gpt2");
  EXPECT_EQ(tokenizer.tokenizer_json_path, "");
  ASSERT_EQ(tokenizer.tokens.size(), 288U);
  EXPECT_EQ(tokenizer.tokens['A'], "A");
  EXPECT_EQ(tokenizer.tokens[287], "<|im_end|>");
  EXPECT_EQ(tokenizer.token_types[287], 3);
  EXPECT_FALSE(tokenizer.add_bos);
  EXPECT_EQ(checkpoint->special_token("eos"), "<|im_end|>");
  EXPECT_EQ(checkpoint->special_token("bos"), "<|endoftext|>");
  EXPECT_EQ(checkpoint->special_token("unk"), "");
  EXPECT_THAT(checkpoint->generation_defaults().eos_token_ids, ElementsAre(287, 285));
  EXPECT_THAT(checkpoint->chat_template(false).value().value_or(""), HasSubstr("<|im_start|>"));
}

TEST_F(Gguf, OverridesReplaceTheFilesRope) {
  const GoldenModel llama = testing::load_golden("T4b-llama3rope");
  const auto source = make_synthetic_checkpoint(llama.config, llama.salt);
  ASSERT_TRUE(write(*source, folder_.file("m.gguf"), TensorType::kF32).has_value());
  const auto with_factors = *Checkpoint::open(folder_.file("m.gguf"), {});
  EXPECT_EQ(with_factors->config().rope.frequency_factors.size(), 4U);
  const auto overridden = Checkpoint::open(folder_.file("m.gguf"), json::object{{"rope_scaling", nullptr}});
  ASSERT_TRUE(overridden.has_value()) << overridden.error().message();
  EXPECT_TRUE((*overridden)->config().rope.frequency_factors.empty());
}

TEST_F(Gguf, BiasedLlamaKeepsTheOrderOfItsBiases) {
  ModelConfig config = testing::load_golden("T4-llama").config;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  const auto source = make_synthetic_checkpoint(config, "bias:");
  ASSERT_TRUE(write(*source, folder_.file("m.gguf"), TensorType::kF32).has_value());
  const auto read = Checkpoint::open(folder_.file("m.gguf"), {});
  ASSERT_TRUE(read.has_value()) << read.error().message();
  const testing::Tokens prompt = golden_.prompts.at("P8");
  EXPECT_EQ(logits(**read, prompt), logits(*source, prompt));
}

TEST_F(Gguf, TruncatedFiles) {
  ASSERT_TRUE(write(*source_, folder_.file("m.gguf"), TensorType::kQ8_0).has_value());
  const auto size = fs::file_size(folder_.file("m.gguf"));
  for (const std::uintmax_t keep :
       {size - 4096, size / 2, std::uintmax_t{5000}, std::uintmax_t{100}, std::uintmax_t{10}}) {
    fs::resize_file(folder_.file("m.gguf"), keep);
    EXPECT_THAT(open_error(), ::testing::AllOf(HasSubstr("m.gguf"), HasSubstr("byte"))) << keep;
  }
}

TEST_F(Gguf, HostileHeaders) {
  EXPECT_THAT(error("GGUX0000"), HasSubstr("GGUF"));
  EXPECT_THAT(error(header(0, 0, 1)), HasSubstr("version 1"));
  EXPECT_THAT(error(header(0, 0, 0x03000000)), HasSubstr("big-endian"));
  EXPECT_THAT(error(header(1ULL << 60, 0)), HasSubstr("at most"));
  EXPECT_THAT(error(header(0, 1ULL << 60)), HasSubstr("at most"));
  EXPECT_THAT(error(header(0, 1)), HasSubstr("ends at byte"));
  EXPECT_TRUE(parse(header(0, 0)).has_value());
}

TEST_F(Gguf, HostileMetadata) {
  const auto key = [](const std::string& name, std::uint32_t type) {
    std::string text = header(0, 1);
    append_string(text, name);
    append(text, type);
    return text;
  };
  std::string text = header(0, 1);
  append<std::uint64_t>(text, 1ULL << 63);
  EXPECT_THAT(error(text), HasSubstr("metadata key"));
  EXPECT_THAT(error(key("k", 99)), HasSubstr("unknown value type 99"));
  text = key("k", 8);
  append<std::uint64_t>(text, 1ULL << 40);
  EXPECT_THAT(error(text), HasSubstr("'k'"));
  text = key("k", 9);
  append<std::uint32_t>(text, 4);
  append<std::uint64_t>(text, 1ULL << 62);
  EXPECT_THAT(error(text), HasSubstr("array 'k'"));
  text = key("k", 9);
  append<std::uint32_t>(text, 9);
  append<std::uint64_t>(text, 1);
  EXPECT_THAT(error(text), HasSubstr("array of arrays"));
  text = key("k", 10);
  append<std::uint64_t>(text, ~0ULL);
  EXPECT_THAT(error(text), HasSubstr("out of range"));
  text = key("general.alignment", 4);
  append<std::uint32_t>(text, 3);
  EXPECT_THAT(error(text), HasSubstr("alignment"));
  text = header(0, 2);
  for (int i = 0; i < 2; ++i) {
    append_string(text, "same");
    append<std::uint32_t>(text, 7);
    text.push_back(1);
  }
  EXPECT_THAT(error(text), HasSubstr("twice"));
}

TEST_F(Gguf, HostileTensorInfos) {
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {}, 0, 0)), HasSubstr("0 dimensions"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {1, 1, 1, 1, 1}, 0, 0)), HasSubstr("5 dimensions"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {0}, 0, 0)), HasSubstr("cannot exist"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {1ULL << 40, 1ULL << 40}, 0, 0)), HasSubstr("cannot exist"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {4}, 0, 7)), HasSubstr("alignment"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {33}, 8, 0)), HasSubstr("multiple of 32"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {4}, 0, 0)), HasSubstr("is the download complete?"));
  EXPECT_THAT(error(header(1, 0) + tensor_info("t", {4}, 0, ~31ULL) + std::string(64, '\0')), HasSubstr("download"));
  EXPECT_THAT(error(header(2, 0) + tensor_info("a", {8}, 0, 0) + tensor_info("b", {8}, 0, 0) + std::string(128, '\0')),
              HasSubstr("overlap"));
  const auto unread = parse(header(1, 0) + tensor_info("t", {256}, 10, 0) + std::string(128, '\0'));
  ASSERT_TRUE(unread.has_value());
  EXPECT_EQ(unread->tensors[0].type, std::nullopt);
  EXPECT_EQ(gguf_type_name(10), "type 10 (Q2_K)");
}

TEST_F(Gguf, UnknownArchitectureAndMissingKeys) {
  const auto file = [&](const std::vector<std::pair<std::string, std::string>>& keys) {
    std::string text = header(0, keys.size());
    for (const auto& [key, value] : keys) {
      append_string(text, key);
      append<std::uint32_t>(text, 8);
      append_string(text, value);
    }
    std::ofstream(folder_.file("m.gguf"), std::ios::binary) << text;
  };
  file({{"general.architecture", "mamba"}});
  EXPECT_THAT(open_error(), ::testing::AllOf(HasSubstr("mamba"), HasSubstr("llama, qwen2, qwen3")));
  file({{"general.architecture", "qwen3"}});
  EXPECT_THAT(open_error(), HasSubstr("qwen3.embedding_length"));
  file({{"general.architecture", "qwen3"}, {"qwen3.embedding_length", "many"}});
  EXPECT_THAT(open_error(), HasSubstr("not one integer"));
}

}  // namespace
}  // namespace tandem::model

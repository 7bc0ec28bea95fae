// SPDX-License-Identifier: Apache-2.0
// Folders written by the tool's library and read back: same logits, and a clear line for each way of being broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "make_model/hf_writer.h"
#include "make_model/tokenizer_files.h"
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

class HfFolder : public ::testing::Test {
 protected:
  explicit HfFolder(const std::string& name = "T7-qwen3-2kv")
      : golden_(testing::load_golden(name)), source_(make_synthetic_checkpoint(golden_.config, golden_.salt)) {}

  void write(const tools::HfOptions& options = {}) {
    const auto written = tools::write_hf_folder(*source_, folder_.path(), options);
    ASSERT_TRUE(written.has_value()) << written.error().message();
  }

  std::unique_ptr<Checkpoint> open(const json::object& overrides = {}) {
    auto opened = Checkpoint::open(folder_.path(), overrides);
    EXPECT_TRUE(opened.has_value()) << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }

  std::string open_error(const json::object& overrides = {}) {
    auto opened = Checkpoint::open(folder_.path(), overrides);
    EXPECT_FALSE(opened.has_value());
    return opened ? "" : opened.error().message();
  }

  Logits logits(const Checkpoint& checkpoint) const {
    ModelOptions options;
    options.compute = ComputeType::kFloat32;
    options.max_positions = 128;
    return ModelRunner(checkpoint, options).all_logits(golden_.prompts.at("P8")).back();
  }

  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_.file(name)) << text; }
  std::string get(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_.file(name)).rdbuf();
    return text.str();
  }
  void change_config(const std::string& changes) const {
    json::object config = json::parse(get("config.json")).as_object();
    const json::value parsed = json::parse(changes);
    for (const auto& [key, value] : parsed.as_object()) config[key] = value;
    put("config.json", json::serialize(config));
  }

  GoldenModel golden_;
  std::unique_ptr<Checkpoint> source_;
  TempFolder folder_;
};

class TiedFolder : public HfFolder {
 protected:
  TiedFolder() : HfFolder("T1-qwen3") {}
};

class ExpertFolder : public HfFolder {
 protected:
  ExpertFolder() : HfFolder("T2b-qwen3moe-mixed") {}
};

TEST_F(ExpertFolder, FusedExpertsAreThoseOfTheirOwnTensors) {
  const Logits expected = logits(*source_);
  std::string fingerprint;
  for (const tools::ExpertForm form :
       {tools::ExpertForm::kSeparate, tools::ExpertForm::kFusedGateUp, tools::ExpertForm::kFused})
    for (const int shards : {1, 3}) {
      write({TensorType::kBf16, shards, {}, form});
      const auto checkpoint = open();
      ASSERT_NE(checkpoint, nullptr);
      EXPECT_EQ(logits(*checkpoint), expected);
      if (fingerprint.empty()) fingerprint = checkpoint->fingerprint();
      EXPECT_EQ(checkpoint->fingerprint(), fingerprint) << "the same weights are the same model";
      fs::remove_all(folder_.path());
      fs::create_directory(folder_.path());
    }
}

TEST_F(ExpertFolder, MissingAndWrongExpertsAreNamed) {
  write();
  change_config(R"({"num_experts": 7})");
  EXPECT_THAT(open_error(), HasSubstr("model.layers.1.mlp.gate.weight"));
  change_config(R"({"num_experts": 6, "moe_intermediate_size": 25})");
  EXPECT_THAT(open_error(), HasSubstr("model.layers.1.mlp.experts.0.gate_proj.weight"));
  change_config(R"({"moe_intermediate_size": 24, "mlp_only_layers": []})");
  EXPECT_THAT(open_error(), HasSubstr("model.layers.3.mlp.gate.weight"));
  write({TensorType::kBf16, 1, {}, tools::ExpertForm::kFusedGateUp});
  change_config(R"({"num_experts": 7})");
  EXPECT_THAT(open_error(), ::testing::AllOf(HasSubstr("model.layers.1.mlp.experts.gate_up_proj"),
                                             HasSubstr("[6, 48, 40]"), HasSubstr("7 experts")));
}

TEST_F(ExpertFolder, ASharedExpertIsRefused) {
  const TensorView other = *source_->tensor("model.layers.0.mlp.gate_proj.weight", 56, 40);
  write({TensorType::kBf16, 1, {{"model.layers.1.mlp.shared_expert.up_proj.weight", other}}});
  EXPECT_THAT(open_error(), HasSubstr("shared_expert"));
}

TEST_F(HfFolder, RoundTripInBf16AndF32) {
  const Logits expected = logits(*source_);
  for (const TensorType type : {TensorType::kBf16, TensorType::kF32}) {
    write({type, 1, {}});
    const auto checkpoint = open();
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(logits(*checkpoint), expected) << tensor_type_name(type);
  }
}

TEST_F(HfFolder, F16RoundsAndStaysClose) {
  write({TensorType::kF16, 1, {}});
  const auto checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_LT(testing::max_abs_difference(logits(*checkpoint), logits(*source_)), 1e-3F);
  EXPECT_EQ(checkpoint->config().dtype, "float16");
}

TEST_F(HfFolder, ShardsWithAnIndex) {
  write({TensorType::kBf16, 3, {}});
  EXPECT_FALSE(fs::exists(folder_.file("model.safetensors")));
  const auto checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(logits(*checkpoint), logits(*source_));
  // The index under another name, and then no index at all.
  fs::rename(folder_.file("model.safetensors.index.json"), folder_.file("other.safetensors.index.json"));
  EXPECT_NE(open(), nullptr);
  fs::remove(folder_.file("other.safetensors.index.json"));
  EXPECT_NE(open(), nullptr);
  const std::string second = "model-00002-of-00003.safetensors";
  fs::copy_file(folder_.file(second), folder_.file("again.safetensors"));
  EXPECT_THAT(open_error(), HasSubstr("stored twice"));
}

TEST_F(HfFolder, BrokenIndexes) {
  write({TensorType::kBf16, 2, {}});
  const std::string index = get("model.safetensors.index.json");
  fs::rename(folder_.file("model-00002-of-00002.safetensors"), folder_.file("kept"));
  EXPECT_THAT(open_error(), HasSubstr("model-00002-of-00002.safetensors"));
  fs::rename(folder_.file("kept"), folder_.file("model-00002-of-00002.safetensors"));
  put("model.safetensors.index.json", R"({"weight_map": {"x": "../../etc/passwd"}})");
  EXPECT_THAT(open_error(), HasSubstr("same folder"));
  put("model.safetensors.index.json", R"({"weight_map": {"not.there": "model-00001-of-00002.safetensors"}})");
  EXPECT_THAT(open_error(), HasSubstr("not.there"));
  put("model.safetensors.index.json", R"({"weight_map": 3})");
  EXPECT_THAT(open_error(), HasSubstr("weight_map"));
  put("model.safetensors.index.json", index);
  EXPECT_NE(open(), nullptr);
}

TEST_F(TiedFolder, AStoredHeadOfATiedModelIsIgnored) {
  TensorView other = *source_->tensor("model.layers.0.self_attn.q_proj.weight", 192, 48);
  other.rows = 257;
  write(
      {TensorType::kBf16, 1, {{"lm_head.weight", other}, {"model.rotary_emb.inv_freq", other}, {"extra.0.x", other}}});
  const auto checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(logits(*checkpoint), logits(*source_));
}

TEST_F(HfFolder, MissingTensorsAndWrongShapesAreNamed) {
  write();
  change_config(R"({"num_hidden_layers": 4})");
  EXPECT_THAT(open_error(), HasSubstr("model.layers.3.input_layernorm.weight"));
  change_config(R"({"num_hidden_layers": 3, "intermediate_size": 145})");
  const std::string message = open_error();
  EXPECT_THAT(message, HasSubstr("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(message, HasSubstr("[144, 96]"));
  EXPECT_THAT(message, HasSubstr("[145, 96]"));
  EXPECT_THAT(message, HasSubstr("model.safetensors"));
}

TEST_F(HfFolder, TruncatedAndEmptyFiles) {
  write();
  const auto size = fs::file_size(folder_.file("model.safetensors"));
  fs::resize_file(folder_.file("model.safetensors"), size - 1);
  EXPECT_THAT(open_error(), HasSubstr("is the download complete?"));
  fs::resize_file(folder_.file("model.safetensors"), 100);
  EXPECT_THAT(open_error(), HasSubstr("is the download complete?"));
  fs::resize_file(folder_.file("model.safetensors"), 0);
  EXPECT_THAT(open_error(), HasSubstr("empty"));
  fs::remove(folder_.file("model.safetensors"));
  EXPECT_THAT(open_error(), HasSubstr("no .safetensors"));
  put("pytorch_model.bin", "x");
  EXPECT_THAT(open_error(), HasSubstr("convert"));
}

TEST_F(HfFolder, ConfigErrorsNameTheFile) {
  write();
  put("config.json", "{");
  EXPECT_THAT(open_error(), HasSubstr("config.json"));
  put("config.json", R"({"architectures": ["FalconForCausalLM"]})");
  const std::string message = open_error();
  EXPECT_THAT(message, HasSubstr("config.json"));
  EXPECT_THAT(message, HasSubstr("FalconForCausalLM"));
  EXPECT_THAT(Checkpoint::open(folder_.file("nowhere"), {}).error().message(), HasSubstr("does not exist"));
  EXPECT_THAT(Checkpoint::open(folder_.file("config.json"), {}).error().message(), HasSubstr("not a .gguf"));
  fs::remove(folder_.file("config.json"));
  EXPECT_THAT(open_error(), HasSubstr("no config.json"));
}

TEST_F(HfFolder, OverridesReachTheConfig) {
  write();
  const auto yarn = json::parse(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2,
                                    "original_max_position_embeddings": 64}})");
  const auto checkpoint = open(yarn.as_object());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().max_context, 128);
  EXPECT_NE(logits(*checkpoint), logits(*source_));
}

TEST_F(HfFolder, TokenizerAndGenerationFiles) {
  write();
  const auto vocabulary = tools::byte_vocabulary(golden_.config.vocab_size);
  ASSERT_TRUE(vocabulary.has_value());
  ASSERT_TRUE(tools::write_tokenizer_files(*vocabulary, folder_.path()).has_value());
  auto checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->tokenizer_source().tokenizer_json_path, folder_.file("tokenizer.json"));
  EXPECT_EQ(checkpoint->special_token("eos"), "<|im_end|>");
  EXPECT_EQ(checkpoint->special_token("bos"), "");
  EXPECT_THAT(checkpoint->generation_defaults().eos_token_ids, ElementsAre(287, 285));
  EXPECT_EQ(checkpoint->chat_template(false).value(), vocabulary->chat_template);
  // model_max_length, special tokens as objects, a list of templates.
  put("tokenizer_config.json", R"({"model_max_length": 100, "bos_token": {"content": "<s>"}, "chat_template":
      [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]})");
  put("generation_config.json", R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null, "eos_token_id": 5,
      "repetition_penalty": 1.05, "max_new_tokens": 2048})");
  checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().max_context, 100);
  EXPECT_EQ(checkpoint->special_token("bos"), "<s>");
  EXPECT_EQ(checkpoint->chat_template(false).value(), "plain");
  EXPECT_EQ(checkpoint->chat_template(true).value(), "tools");
  const GenerationDefaults defaults = checkpoint->generation_defaults();
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.min_p, std::nullopt);
  EXPECT_EQ(defaults.max_new_tokens, 2048);
  EXPECT_THAT(defaults.eos_token_ids, ElementsAre(5));
  put("chat_template.jinja", "from the file");
  EXPECT_EQ(open()->chat_template(true).value(), "from the file");
}

TEST_F(HfFolder, BrokenSmallFilesAreNamed) {
  write();
  put("generation_config.json", R"({"top_k": "many"})");
  EXPECT_THAT(open_error(), ::testing::AllOf(HasSubstr("generation_config.json"), HasSubstr("top_k")));
  put("generation_config.json", R"({"eos_token_id": [-1]})");
  EXPECT_THAT(open_error(), HasSubstr("eos_token_id"));
  fs::remove(folder_.file("generation_config.json"));
  put("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(open_error(), ::testing::AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("chat_template")));
  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]})");
  const auto checkpoint = open();
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_FALSE(checkpoint->chat_template(false).has_value());
}

TEST_F(HfFolder, FingerprintsFollowTheBytes) {
  write();
  const std::string before = open()->fingerprint();
  EXPECT_EQ(open()->fingerprint(), before);
  source_ = make_synthetic_checkpoint(golden_.config, "other:");
  write();
  EXPECT_NE(open()->fingerprint(), before);
}

TEST_F(HfFolder, IdentityOfKvFollowsComputeTypeAndRope) {
  write();
  kernels::ThreadTeam team(1);
  const auto layout = [&](ComputeType compute, const json::object& overrides) {
    ModelOptions options;
    options.compute = compute;
    options.max_positions = 64;
    const auto checkpoint = open(overrides);
    return (*Model::load(*checkpoint, options, team))->kv_layouts(16, 8).front();
  };
  const kv::Layout bf16 = layout(ComputeType::kBf16, {});
  EXPECT_EQ(bf16.element, kv::ElementType::kBf16);
  EXPECT_EQ(layout(ComputeType::kFloat32, {}).element, kv::ElementType::kF32);
  EXPECT_EQ(bf16.fingerprint, layout(ComputeType::kBf16, {}).fingerprint);
  EXPECT_NE(bf16.fingerprint, layout(ComputeType::kW8A8, {}).fingerprint);
  const auto linear = json::parse(R"({"rope_scaling": {"rope_type": "linear", "factor": 2}})").as_object();
  EXPECT_NE(bf16.fingerprint, layout(ComputeType::kBf16, linear).fingerprint);
}

TEST_F(HfFolder, AContextWithoutMemoryIsRefused) {
  kernels::ThreadTeam team(1);
  ModelOptions options;
  options.max_positions = std::int64_t{1} << 40;
  EXPECT_THAT(Model::load(*source_, options, team).error().message(), HasSubstr("--max-model-len"));
}

TEST_F(HfFolder, ProgressEndsAtOne) {
  kernels::ThreadTeam team(1);
  ModelOptions options;
  options.max_positions = 64;
  std::vector<double> shares;
  ASSERT_TRUE(Model::load(*source_, options, team, [&](double share) { shares.push_back(share); }).has_value());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_EQ(shares.back(), 1.0);
  EXPECT_GT(shares.size(), 10U);
}

}  // namespace
}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
// Whole folders of quantised models: compressed-tensors and W8A8_MIX files give the bits of W8A8 made at load; biases
// of norms and modules, heads and wrapped norms count as the specification says; what contradicts itself is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <ostream>
#include <sstream>
#include <string>

#include "make_model/hf_writer.h"
#include "model/generator.h"
#include "model/mapped_file.h"
#include "model/quantize/quantizer.h"
#include "model/quantize/safetensors_writer.h"
#include "model/safetensors.h"
#include "support/model_support.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Logits;
using testing::ModelRunner;

/// The tensors of a file as bytes that a test may change.
struct EditedTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};
using Edited = std::map<std::string, EditedTensor>;

EditedTensor floats(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  EditedTensor tensor{"F32", std::move(shape), std::vector<std::byte>(values.size() * sizeof(float))};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

class QuantisedFolder : public ::testing::Test {
 protected:
  explicit QuantisedFolder(const std::string& name = "T1-qwen3") : golden_(testing::load_golden(name)), team_(1) {
    const auto synthetic = make_synthetic_checkpoint(golden_.config, golden_.salt);
    TANDEM_ASSERT(tools::write_hf_folder(*synthetic, float_.path(), {TensorType::kBf16, 1, {}}), "no float folder");
    source_ = open(float_.path());
  }

  void quantize(const QuantizeOptions& options = {}) {
    const auto report = quantize_checkpoint(*source_, float_.path(), folder_.path(), options, team_);
    TANDEM_ASSERT(report.has_value(), report.error().message().c_str());
  }
  /// All modules FLOAT: what is left of the quantisation is the format.
  void write_floats() {
    QuantizeOptions options;
    options.exclude = {"*"};
    quantize(options);
  }

  void edit(const std::function<void(Edited&)>& change) {
    const std::string path = folder_.file("model.safetensors");
    Edited edited;
    {
      const auto file = MappedFile::open(path);
      const auto tensors = parse_safetensors(file->bytes(), path);
      for (const StoredTensor& tensor : *tensors)
        edited[tensor.name] = {tensor.type_name, tensor.shape, {tensor.data, tensor.data + tensor.bytes}};
    }
    change(edited);
    std::vector<OutputTensor> outputs;
    for (const auto& [name, tensor] : edited)
      outputs.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.size(),
                         [bytes = &tensor.bytes](std::ostream& out) -> Result<void> {
                           out.write(reinterpret_cast<const char*>(bytes->data()),
                                     static_cast<std::streamsize>(bytes->size()));
                           return {};
                         }});
    TANDEM_ASSERT(write_safetensors_folder(folder_.path(), outputs, std::size_t{1} << 30), "cannot write");
  }

  json::object object(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(folder_.file(file)).rdbuf();
    return json::parse(text.str()).as_object();
  }
  void put(const std::string& file, const json::object& object) const {
    std::ofstream(folder_.file(file)) << json::serialize(object);
  }

  static std::unique_ptr<Checkpoint> open(const std::string& path) {
    auto opened = Checkpoint::open(path, {});
    TANDEM_ASSERT(opened.has_value(), opened.error().message().c_str());
    return std::move(*opened);
  }
  std::string open_error() const {
    const auto opened = Checkpoint::open(folder_.path(), {});
    EXPECT_FALSE(opened.has_value());
    return opened ? "" : opened.error().message();
  }

  std::vector<Logits> logits(const Checkpoint& checkpoint, ComputeType compute, bool float32_rest = true) const {
    ModelOptions options;
    options.compute = compute;
    options.float32_rest = float32_rest;
    options.max_positions = 256;
    return ModelRunner(checkpoint, options).all_logits(golden_.prompts.at("P100"));
  }
  std::vector<Logits> quantised_logits() const { return logits(*open(folder_.path()), ComputeType::kFloat32); }

  testing::GoldenModel golden_;
  kernels::ThreadTeam team_;
  testing::TempFolder float_, folder_;
  std::unique_ptr<Checkpoint> source_;
};

TEST_F(QuantisedFolder, CompressedTensorsInt8GivesTheGoldenValues) {
  quantize();
  fs::remove(folder_.file("quant_model_description.json"));
  json::object config = object("config.json");
  config["quantization_config"] = json::parse(R"({"quant_method": "compressed-tensors", "format": "int-quantized",
      "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
      "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true},
      "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": true, "dynamic": true}}}})");
  put("config.json", config);
  edit([](Edited& tensors) {
    std::erase_if(tensors, [](const auto& tensor) { return tensor.first.ends_with(".weight_offset"); });
  });
  const auto checkpoint = open(folder_.path());
  EXPECT_EQ(checkpoint->quantization(), "compressed-tensors");
  const auto got = logits(*checkpoint, ComputeType::kFloat32);
  EXPECT_EQ(got, logits(*source_, ComputeType::kW8A8));
  EXPECT_LE(testing::max_abs_difference(got.back(), golden_.w8a8_last_logits.at("P100")), 0.03F);
}

TEST_F(QuantisedFolder, MixedStaticAndDynamicFilesAreDynamic) {
  quantize();
  json::object description = object("quant_model_description.json");
  for (auto& [name, type] : description)
    if (type == "W8A8_DYNAMIC") type = "W8A8_MIX";
  put("quant_model_description_w8a8_mix.json", description);
  EXPECT_EQ(quantised_logits(), logits(*source_, ComputeType::kW8A8)) << "the exact name is read first";
  fs::remove(folder_.file("quant_model_description.json"));
  EXPECT_EQ(quantised_logits(), logits(*source_, ComputeType::kW8A8)) << "and the name of MindIE's exports";
  put("quant_model_description_other.json", description);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("2 descriptions"), HasSubstr("quant_model_description_other.json")));
}

TEST_F(QuantisedFolder, TheBiasOfTheLastNormShiftsTheLogits) {
  write_floats();
  const auto before = quantised_logits();
  EXPECT_EQ(before, logits(*source_, ComputeType::kFloat32));
  std::vector<float> bias;
  for (std::int32_t i = 0; i < golden_.config.hidden_size; ++i) bias.push_back(generator_unit(3, std::uint64_t(i)));
  edit([&](Edited& tensors) { tensors["model.norm.bias"] = floats({golden_.config.hidden_size}, bias); });
  const auto after = quantised_logits();
  // T1 is tied: logits are the embedding's rows times the norm.
  const auto head = source_->tensor("model.embed_tokens.weight", golden_.config.vocab_size, golden_.config.hidden_size);
  std::vector<float> row(bias.size());
  for (std::int32_t token = 0; token < golden_.config.vocab_size; ++token) {
    head->read_row(token, row.data());
    double shift = 0.0;
    for (std::size_t i = 0; i < row.size(); ++i) shift += static_cast<double>(row[i]) * bias[i];
    const auto at = static_cast<std::size_t>(token);
    EXPECT_NEAR(after.back()[at], before.back()[at] + shift, 1e-4);
  }
}

TEST_F(QuantisedFolder, WrappedNormsAndHeadsOfRotatedModels) {
  write_floats();
  const auto before = quantised_logits();
  edit([](Edited& tensors) {
    // MindIE's form: the pair inside counts, what stands outside is from before smoothing.
    const EditedTensor weight = tensors.at("model.layers.1.input_layernorm.weight");
    tensors["model.layers.1.input_layernorm.module.weight"] = weight;
    std::fill(tensors["model.layers.1.input_layernorm.weight"].bytes.begin(),
              tensors["model.layers.1.input_layernorm.weight"].bytes.end(), std::byte{0});
  });
  EXPECT_EQ(quantised_logits(), before);
  edit([&](Edited& tensors) {
    std::vector<float> zeros(static_cast<std::size_t>(golden_.config.hidden_size), 0.0F);
    tensors["model.layers.1.input_layernorm.module.bias"] = floats({golden_.config.hidden_size}, zeros);
  });
  EXPECT_EQ(quantised_logits(), before);
  edit([&](Edited& tensors) {
    std::vector<float> ones(static_cast<std::size_t>(golden_.config.hidden_size), 1.0F);
    tensors["model.layers.1.input_layernorm.module.bias"] = floats({golden_.config.hidden_size}, ones);
  });
  EXPECT_NE(quantised_logits(), before);
  edit([](Edited& tensors) {
    tensors.erase("model.layers.1.input_layernorm.module.bias");
    // A head of its own, with rows moved by one.
    EditedTensor head = tensors.at("model.embed_tokens.weight");
    const auto row = static_cast<std::ptrdiff_t>(head.bytes.size() / static_cast<std::size_t>(head.shape[0]));
    std::rotate(head.bytes.begin(), head.bytes.begin() + row, head.bytes.end());
    tensors["lm_head.weight"] = head;
  });
  const auto rotated = quantised_logits();
  EXPECT_EQ(rotated.back()[0], before.back()[1]);
  EXPECT_EQ(rotated.back()[256], before.back()[0]);
}

class BiasedFolder : public QuantisedFolder {
 protected:
  BiasedFolder() : QuantisedFolder("T3-qwen2") {}
};

TEST_F(BiasedFolder, ANormsBiasIsABiasOfWhatItFeeds) {
  write_floats();
  const std::int32_t hidden = golden_.config.hidden_size;
  std::vector<float> bias;
  for (std::int32_t i = 0; i < hidden; ++i) bias.push_back(0.5F * generator_unit(4, std::uint64_t(i)));
  edit([&](Edited& tensors) { tensors["model.layers.0.input_layernorm.bias"] = floats({hidden}, bias); });
  const auto with_norm = quantised_logits();
  // The same by hand: W (n + b) = W n + W b.
  edit([&](Edited& tensors) {
    tensors.erase("model.layers.0.input_layernorm.bias");
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      const std::string name = "model.layers.0.self_attn." + std::string(part);
      const std::int64_t rows = tensors.at(name + ".weight").shape[0];
      const auto weight = source_->tensor(name + ".weight", rows, hidden);
      std::vector<float> moved(static_cast<std::size_t>(rows)), row(bias.size());
      source_->tensor(name + ".bias", 1, rows)->read_row(0, moved.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        weight->read_row(i, row.data());
        for (std::size_t k = 0; k < row.size(); ++k) moved[static_cast<std::size_t>(i)] += row[k] * bias[k];
      }
      tensors[name + ".bias"] = floats({rows}, moved);
    }
  });
  const auto by_hand = quantised_logits();
  EXPECT_LT(testing::max_abs_difference(with_norm.back(), by_hand.back()), 1e-4F);
  EXPECT_GT(testing::max_abs_difference(with_norm.back(), logits(*source_, ComputeType::kFloat32).back()), 0.05F);
}

TEST_F(BiasedFolder, AStaticBiasCountsOnceAndMayBeLeftOut) {
  ModelOptions options;
  options.compute = ComputeType::kFloat32;
  options.max_positions = 128;
  QuantizeOptions how;
  how.ranges = *measure_inputs(*source_, options, team_, {golden_.prompts.at("P100"), 64});
  quantize(how);
  const auto with_bias = quantised_logits();
  EXPECT_LT(testing::relative_l2(with_bias.back(), golden_.last_logits.at("P100")), 0.12);
  edit([](Edited& tensors) {
    EXPECT_EQ(std::erase_if(tensors, [](const auto& tensor) { return tensor.first.ends_with("_proj.bias"); }), 6U);
  });
  EXPECT_EQ(quantised_logits(), with_bias);
  edit([](Edited& tensors) { tensors.erase("model.layers.1.self_attn.k_proj.quant_bias"); });
  EXPECT_THAT(open_error(), HasSubstr("model.layers.1.self_attn.k_proj"));
}

TEST_F(BiasedFolder, ABiasThatSmoothingMadeIsAdded) {
  quantize();  // dynamic
  const auto before = quantised_logits();
  edit([](Edited& tensors) {
    const auto rows = tensors.at("model.layers.0.mlp.down_proj.weight").shape[0];
    tensors["model.layers.0.mlp.down_proj.bias"] = floats({rows}, std::vector<float>(std::size_t(rows), 0.25F));
  });
  EXPECT_NE(quantised_logits(), before);
}

TEST_F(QuantisedFolder, ContradictionsAreRefused) {
  quantize();
  json::object description = object("quant_model_description.json");
  const json::object good = description;
  description["model.layers.2.mlp.up_proj.weight"] = "W8A8_MXFP8";
  put("quant_model_description.json", description);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("model.layers.2.mlp.up_proj"), HasSubstr("W8A8_MXFP8")));
  description["model.layers.2.mlp.up_proj.weight"] = "FLOAT";
  put("quant_model_description.json", description);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("model.layers.2.mlp.up_proj.weight"), HasSubstr("I8")));
  put("quant_model_description.json", good);
  json::object config = object("config.json");
  config["quantization_config"] = {{"quant_method", "fp8"}};
  put("config.json", config);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("both"), HasSubstr("quantization_config")));
  config.erase("quantization_config");
  config["quantize"] = "w8a8_dynamic";
  put("config.json", config);
  EXPECT_EQ(quantised_logits(), logits(*source_, ComputeType::kW8A8));
  fs::remove(folder_.file("quant_model_description.json"));
  EXPECT_THAT(open_error(), HasSubstr("'quantize'"));
}

TEST_F(QuantisedFolder, FingerprintsSeeStaticScales) {
  ModelOptions options;
  options.compute = ComputeType::kFloat32;
  options.max_positions = 128;
  QuantizeOptions how;
  how.ranges = *measure_inputs(*source_, options, team_, {golden_.prompts.at("P100"), 64});
  quantize(how);
  const std::string before = open(folder_.path())->fingerprint();
  EXPECT_EQ(open(folder_.path())->fingerprint(), before);
  edit([](Edited& tensors) { tensors["model.layers.1.mlp.up_proj.input_offset"] = floats({1}, {-3.0F}); });
  EXPECT_NE(open(folder_.path())->fingerprint(), before);
}

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(matches_glob("*.down_proj", "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(matches_glob("model.layers.?.*", "model.layers.0.mlp"));
  EXPECT_TRUE(matches_glob("*a*b*", "xxaxxbxx"));
  EXPECT_TRUE(matches_glob("**", ""));
  EXPECT_FALSE(matches_glob("*.down_proj", "model.down_proj_2"));
  EXPECT_FALSE(matches_glob("model.layers.?.x", "model.layers.10.x"));
  EXPECT_FALSE(matches_glob("", "a"));
}

TEST(StaticInputOf, TheFormulasOfTheSpecification) {
  EXPECT_FALSE(static_input_of({0.0F, 0.0F}).has_value());
  const auto input = static_input_of({-1.0F, 4.1F});
  EXPECT_FLOAT_EQ(input->scale, 5.1F / 255.0F);
  EXPECT_EQ(input->offset, 50.0F - 128.0F);
  EXPECT_EQ(static_input_of({0.0F, 1.0F})->offset, -128.0F);
  EXPECT_EQ(static_input_of({-1.0F, 0.0F})->offset, 127.0F);
}

}  // namespace
}  // namespace tandem::model

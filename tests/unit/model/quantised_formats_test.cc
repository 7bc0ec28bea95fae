// SPDX-License-Identifier: Apache-2.0
// Readers of quantised checkpoints on small cases worked out here: values, and a clear line for what cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/float16.h"
#include "make_model/encode.h"
#include "model/quantised/block_fp8.h"
#include "model/quantised/format.h"

namespace tandem::model {
namespace {

namespace json = boost::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Tensors in memory.
class Tensors {
 public:
  template <class T>
  void add(const std::string& name, const std::string& type, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    std::vector<std::byte>& bytes = memory_.emplace_back(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    StoredTensor tensor;
    tensor.name = tensor.stored_name = name;
    tensor.type_name = type;
    if (type == "F32") tensor.type = TensorType::kF32;
    if (type == "BF16") tensor.type = TensorType::kBf16;
    if (type == "F16") tensor.type = TensorType::kF16;
    tensor.shape = std::move(shape);
    tensor.data = bytes.data();
    tensor.bytes = bytes.size();
    ASSERT_TRUE(index.add(std::move(tensor), "memory").has_value());
  }
  void add_f16(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
    std::vector<std::uint16_t> halves;
    for (const float value : values) halves.push_back(tools::to_f16(value).bits);
    add(name, "F16", std::move(shape), halves);
  }

  TensorIndex index;

 private:
  std::deque<std::vector<std::byte>> memory_;
};

Result<std::unique_ptr<QuantisedFormat>> format_of(const std::string& config, const std::string& description = "") {
  const json::object parsed = json::parse(config).as_object();
  if (description.empty()) return quantised_format(parsed, nullptr);
  const json::object described = json::parse(description).as_object();
  return quantised_format(parsed, &described);
}

LinearModule read(const QuantisedFormat& format, const Tensors& tensors, std::int64_t rows, std::int64_t cols) {
  auto module = format.linear(tensors.index, "m", rows, cols);
  EXPECT_TRUE(module.has_value()) << module.error().message();
  EXPECT_TRUE(module && module->has_value());
  return module && *module ? **module : LinearModule();
}

std::string read_error(const QuantisedFormat& format, const Tensors& tensors, std::int64_t rows, std::int64_t cols) {
  const auto module = format.linear(tensors.index, "m", rows, cols);
  EXPECT_FALSE(module.has_value());
  return module ? "" : module.error().message();
}

std::vector<float> row_of(const LinearModule& module, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(module.weight.cols));
  module.weight.read_row(row, values.data());
  return values;
}

// The int4 cases: 8 outputs, 16 inputs, groups of 8. Value and zero point of each, by formula.
constexpr int kRows = 8;
constexpr int kCols = 16;
int value_at(int n, int k) { return (5 * n + 3 * k + n * k) % 16; }
int zero_at(int group, int n) { return (7 + 3 * group + n) % 16; }
float scale_at(int group, int n) { return 0.125F * static_cast<float>(1 + group + 2 * n); }

std::vector<float> group_scales() {
  std::vector<float> scales;
  for (int group = 0; group < 2; ++group)
    for (int n = 0; n < kRows; ++n) scales.push_back(scale_at(group, n));
  return scales;
}

std::vector<float> expected_row(int n, int zero_shift, const std::vector<int>& group_of) {
  std::vector<float> row;
  for (int k = 0; k < kCols; ++k) {
    const int group = group_of[static_cast<std::size_t>(k)];
    row.push_back(static_cast<float>(value_at(n, k) - zero_at(group, n) - zero_shift) * scale_at(group, n));
  }
  return row;
}

const std::vector<int> kRuns = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};

Tensors gptq_tensors() {
  Tensors tensors;
  std::vector<std::uint32_t> weights, zeros;
  for (int word = 0; word < kCols / 8; ++word)
    for (int n = 0; n < kRows; ++n) {
      std::uint32_t packed = 0;
      for (int i = 0; i < 8; ++i) packed |= static_cast<std::uint32_t>(value_at(n, 8 * word + i)) << (4 * i);
      weights.push_back(packed);
    }
  for (int group = 0; group < 2; ++group) {
    std::uint32_t packed = 0;
    for (int n = 0; n < kRows; ++n) packed |= static_cast<std::uint32_t>(zero_at(group, n)) << (4 * n);
    zeros.push_back(packed);
  }
  tensors.add("m.qweight", "I32", {kCols / 8, kRows}, weights);
  tensors.add("m.qzeros", "I32", {2, kRows / 8}, zeros);
  tensors.add_f16("m.scales", {2, kRows}, group_scales());
  return tensors;
}

TEST(Gptq, ZeroPointsOfBothVersions) {
  Tensors tensors = gptq_tensors();
  const std::string config = R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8)";
  const auto v1 = format_of(config + "}}");
  const auto v2 = format_of(config + R"(, "checkpoint_format": "gptq_v2"}})");
  ASSERT_TRUE(v1 && v2);
  EXPECT_EQ((*v1)->method(), "gptq");
  const LinearModule module = read(**v1, tensors, kRows, kCols);
  EXPECT_TRUE(module.is_dequantised());
  EXPECT_EQ(module.type, "gptq int4");
  for (int n = 0; n < kRows; ++n) {
    EXPECT_EQ(row_of(module, n), expected_row(n, 1, kRuns)) << n;
    EXPECT_EQ(row_of(read(**v2, tensors, kRows, kCols), n), expected_row(n, 0, kRuns)) << n;
  }
}

TEST(Gptq, ActOrderTakesEachInputsGroup) {
  Tensors tensors = gptq_tensors();
  const std::vector<std::int32_t> order = {1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1};
  tensors.add("m.g_idx", "I32", {kCols}, order);
  const auto format =
      format_of(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": true}})");
  const LinearModule module = read(**format, tensors, kRows, kCols);
  for (int n = 0; n < kRows; ++n)
    EXPECT_EQ(row_of(module, n), expected_row(n, 1, std::vector<int>(order.begin(), order.end())));
}

TEST(Gptq, RefusalsNameWhatIsWrong) {
  Tensors tensors = gptq_tensors();
  const auto config = [](const std::string& rest) {
    return R"({"quantization_config": {"quant_method": "gptq")" + rest + "}}";
  };
  EXPECT_THAT(format_of(config(R"(, "bits": 8)")).error().message(), AllOf(HasSubstr("'bits' is 8"), HasSubstr("4")));
  EXPECT_THAT(format_of(config(R"(, "checkpoint_format": "marlin")")).error().message(), HasSubstr("marlin"));
  const auto format = format_of(config(R"(, "group_size": 16)"));
  EXPECT_THAT(read_error(**format, tensors, kRows, kCols), AllOf(HasSubstr("m.qzeros"), HasSubstr("[2, 1]")));
  tensors.add("m.g_idx", "I32", {kCols}, std::vector<std::int32_t>(kCols, 2));
  EXPECT_THAT(read_error(**format_of(config(R"(, "group_size": 8)")), tensors, kRows, kCols), HasSubstr("m.g_idx"));
  EXPECT_FALSE((*format)->linear(tensors.index, "other", 8, 16)->has_value()) << "not quantised";
}

TEST(Awq, ColumnsStandInTheirOrder) {
  Tensors tensors;
  constexpr int kColumnOf[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of nibble j
  std::vector<std::uint32_t> weights, zeros;
  for (int k = 0; k < kCols; ++k) {
    std::uint32_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= static_cast<std::uint32_t>(value_at(kColumnOf[j], k)) << (4 * j);
    weights.push_back(packed);
  }
  for (int group = 0; group < 2; ++group) {
    std::uint32_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= static_cast<std::uint32_t>(zero_at(group, kColumnOf[j])) << (4 * j);
    zeros.push_back(packed);
  }
  tensors.add("m.qweight", "I32", {kCols, kRows / 8}, weights);
  tensors.add("m.qzeros", "I32", {2, kRows / 8}, zeros);
  tensors.add_f16("m.scales", {2, kRows}, group_scales());
  const auto format =
      format_of(R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}})");
  EXPECT_EQ((*format)->method(), "awq");
  const LinearModule module = read(**format, tensors, kRows, kCols);
  for (int n = 0; n < kRows; ++n) EXPECT_EQ(row_of(module, n), expected_row(n, 0, kRuns)) << n;
  EXPECT_THAT(format_of(R"({"quantization_config": {"quant_method": "awq", "version": "gemv"}})").error().message(),
              HasSubstr("gemv"));
}

constexpr const char* kInt8Groups = R"({"quantization_config": {"quant_method": "compressed-tensors",
  "format": "int-quantized", "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {
  "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel",
  "symmetric": true, "dynamic": false}, "input_activations": {"num_bits": 8, "type": "int", "strategy": "STRATEGY",
  "symmetric": true, "dynamic": DYNAMIC}}}}})";

std::string int8_groups(const std::string& strategy, const std::string& dynamic) {
  std::string text = kInt8Groups;
  text.replace(text.find("STRATEGY"), 8, strategy);
  text.replace(text.find("DYNAMIC"), 7, dynamic);
  return text;
}

TEST(CompressedTensors, DynamicInt8KeepsRowsAndScales) {
  Tensors tensors;
  tensors.add<std::int8_t>("m.weight", "I8", {2, 3}, {10, -20, 127, -128, 0, 64});
  tensors.add<float>("m.weight_scale", "F32", {2, 1}, {0.01F, 0.02F});
  const auto format = format_of(int8_groups("token", "true"));
  ASSERT_TRUE(format.has_value()) << format.error().message();
  const LinearModule module = read(**format, tensors, 2, 3);
  ASSERT_TRUE(module.int8.has_value());
  EXPECT_THAT(module.int8->scale, ElementsAre(0.01F, 0.02F));
  EXPECT_EQ(module.int8->values[3], -128);
  EXPECT_FALSE(module.int8->input.has_value());
  EXPECT_TRUE(module.int8->start.empty());
  EXPECT_FALSE(module.includes_bias);
  EXPECT_THAT(row_of(module, 1), ElementsAre(-128 * 0.02F, 0.0F, 64 * 0.02F));
  tensors.add<float>("m.input_scale", "F32", {1}, {0.5F});
  EXPECT_THAT(read_error(**format, tensors, 2, 3), HasSubstr("input_scale"));
}

TEST(CompressedTensors, StaticInt8WithAZeroPoint) {
  Tensors tensors;
  tensors.add<std::int8_t>("m.weight", "I8", {2, 3}, {10, -20, 127, -128, 0, 64});
  tensors.add<std::uint16_t>("m.weight_scale", "BF16", {1}, {to_bf16(0.5F).bits});  // one for all
  tensors.add<float>("m.input_scale", "F32", {1}, {0.25F});
  tensors.add<std::int8_t>("m.input_zero_point", "I8", {1}, {-28});
  const auto format = format_of(int8_groups("tensor", "false"));
  ASSERT_TRUE(format.has_value()) << format.error().message();
  const LinearModule module = read(**format, tensors, 2, 3);
  ASSERT_TRUE(module.int8 && module.int8->input);
  EXPECT_EQ(*module.int8->input, (kernels::StaticInput{0.25F, 0.0F, -28}));
  EXPECT_THAT(module.int8->scale, ElementsAre(0.125F, 0.125F));
  EXPECT_THAT(module.int8->start, ElementsAre(28 * 117, 28 * -64));
}

TEST(CompressedTensors, PackedInt4WithAndWithoutZeroPoints) {
  Tensors plain, zeroed;
  std::vector<std::uint32_t> weights, zeros(2, 0);
  std::vector<float> scales;
  for (int n = 0; n < kRows; ++n)
    for (int word = 0; word < kCols / 8; ++word) {
      std::uint32_t packed = 0;
      for (int i = 0; i < 8; ++i) packed |= static_cast<std::uint32_t>(value_at(n, 8 * word + i)) << (4 * i);
      weights.push_back(packed);
    }
  for (int n = 0; n < kRows; ++n)
    for (int group = 0; group < 2; ++group) {
      scales.push_back(scale_at(group, n));
      zeros[static_cast<std::size_t>(group)] |= static_cast<std::uint32_t>(zero_at(group, n)) << (4 * n);
    }
  for (Tensors* tensors : {&plain, &zeroed}) {
    tensors->add("m.weight_packed", "I32", {kRows, kCols / 8}, weights);
    tensors->add("m.weight_scale", "F32", {kRows, 2}, scales);
    tensors->add<std::int64_t>("m.weight_shape", "I64", {2}, {kRows, kCols});
  }
  zeroed.add("m.weight_zero_point", "I32", {kRows / 8, 2}, zeros);
  const auto format = format_of(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
      "type": "int", "strategy": "group", "group_size": 8, "symmetric": true}}}}})");
  ASSERT_TRUE(format.has_value()) << format.error().message();
  for (int n = 0; n < kRows; ++n) {
    EXPECT_EQ(row_of(read(**format, zeroed, kRows, kCols), n), expected_row(n, 0, kRuns));
    std::vector<float> symmetric;
    for (int k = 0; k < kCols; ++k) symmetric.push_back(static_cast<float>(value_at(n, k) - 8) * scale_at(k / 8, n));
    EXPECT_EQ(row_of(read(**format, plain, kRows, kCols), n), symmetric);
  }
}

TEST(CompressedTensors, UnknownSchemesAreNamed) {
  const auto error = [](const std::string& group) {
    return format_of(R"({"compression_config": {"quant_method": "compressed-tensors", "config_groups": {"g": )" +
                     group + "}}}")
        .error()
        .message();
  };
  EXPECT_THAT(error(R"({"weights": {"num_bits": 8, "type": "float"}})"), AllOf(HasSubstr("'g'"), HasSubstr("float")));
  EXPECT_THAT(error(R"({"weights": {"num_bits": 2}})"), HasSubstr("num_bits is 2"));
  EXPECT_THAT(error(R"({"weights": {"num_bits": 8, "strategy": "block"}})"), HasSubstr("block"));
  EXPECT_THAT(error(R"({"weights": {"num_bits": 8}})"), HasSubstr("input_activations"));
  EXPECT_THAT(error("5"), HasSubstr("not an object"));
}

TEST(BlockFp8, ValuesTimesTheScaleOfTheirBlock) {
  EXPECT_EQ(fp8_e4m3_value(0x00), 0.0F);
  EXPECT_EQ(fp8_e4m3_value(0x01), std::ldexp(1.0F, -9));
  EXPECT_EQ(fp8_e4m3_value(0x08), std::ldexp(1.0F, -6));
  EXPECT_EQ(fp8_e4m3_value(0x38), 1.0F);
  EXPECT_EQ(fp8_e4m3_value(0xbc), -1.5F);
  EXPECT_EQ(fp8_e4m3_value(0x7e), 448.0F);
  EXPECT_TRUE(std::isnan(fp8_e4m3_value(0x7f)) && std::isnan(fp8_e4m3_value(0xff)));
  Tensors tensors;
  // 3 x 5 in blocks of 2 x 4: the last blocks are cut.
  tensors.add<std::uint8_t>("m.weight", "F8_E4M3", {3, 5},
                            {0x38, 0x38, 0x38, 0x38, 0x38, 0x40, 0x40, 0x40, 0x40, 0x40, 0xb8, 0xb8, 0xb8, 0xb8, 0xb8});
  tensors.add<float>("m.weight_scale_inv", "F32", {2, 2}, {2.0F, 3.0F, 5.0F, 7.0F});
  const auto format =
      format_of(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [2, 4]}})");
  EXPECT_EQ((*format)->method(), "fp8");
  const LinearModule module = read(**format, tensors, 3, 5);
  EXPECT_THAT(row_of(module, 0), ElementsAre(2.0F, 2.0F, 2.0F, 2.0F, 3.0F));
  EXPECT_THAT(row_of(module, 1), ElementsAre(4.0F, 4.0F, 4.0F, 4.0F, 6.0F));
  EXPECT_THAT(row_of(module, 2), ElementsAre(-5.0F, -5.0F, -5.0F, -5.0F, -7.0F));
  EXPECT_THAT(read_error(**format, tensors, 5, 3), HasSubstr("F8_E4M3 [3, 5]"));
  EXPECT_THAT(format_of(R"({"quantization_config": {"quant_method": "fp8"}})").error().message(),
              HasSubstr("weight_block_size"));
}

constexpr const char* kStatic = R"({"m.weight": "W8A8", "m.quant_bias": "W8A8", "model_quant_type": "W8A8"})";

Tensors static_tensors() {
  Tensors tensors;
  tensors.add<std::int8_t>("m.weight", "I8", {2, 3}, {10, -20, 127, -128, 0, 64});
  tensors.add<float>("m.input_scale", "F32", {1}, {0.05F});
  tensors.add<float>("m.input_offset", "F32", {1}, {-28.0F});
  tensors.add<std::int32_t>("m.quant_bias", "I32", {2}, {4276, -2042});
  return tensors;
}

TEST(Ascend, StaticWithDeqScaleInBothEncodings) {
  const auto format = format_of("{}", kStatic);
  ASSERT_TRUE(format.has_value()) << format.error().message();
  EXPECT_EQ((*format)->method(), "ascend");
  const std::vector<float> scales = {0.0005F, 0.001F};
  for (const bool as_integers : {false, true}) {
    Tensors tensors = static_tensors();
    if (as_integers) {
      std::vector<std::uint64_t> bits;
      for (const float scale : scales)
        bits.push_back(std::uint64_t{0xdeadbeef} << 32 | std::bit_cast<std::uint32_t>(scale));
      tensors.add("m.deq_scale", "I64", {2}, bits);
    } else {
      tensors.add("m.deq_scale", "F32", {2}, scales);
    }
    const LinearModule module = read(**format, tensors, 2, 3);
    ASSERT_TRUE(module.int8 && module.int8->input);
    EXPECT_TRUE(module.includes_bias);
    EXPECT_EQ(*module.int8->input, (kernels::StaticInput{0.05F, -28.0F, 0}));
    EXPECT_EQ(module.int8->scale, scales);
    EXPECT_THAT(module.int8->start, ElementsAre(4276, -2042));
    EXPECT_NEAR(row_of(module, 0)[2], 1.27F, 1e-6F);
  }
}

TEST(Ascend, StaticRefusals) {
  const auto format = format_of("{}", kStatic);
  Tensors missing = static_tensors();
  EXPECT_THAT(read_error(**format, missing, 2, 3), AllOf(HasSubstr("'m'"), HasSubstr("m.deq_scale")));
  Tensors nan = static_tensors();
  nan.add<std::uint64_t>("m.deq_scale", "I64", {2}, {0x7fc00000, 0});
  EXPECT_THAT(read_error(**format, nan, 2, 3), HasSubstr("0x7fc00000"));
  for (const auto& [scale, offset, word] :
       {std::tuple{0.0F, 1.0F, "input_scale"}, {1.0F, 200.0F, "input_offset"}, {1.0F, 0.5F, "whole"}}) {
    Tensors tensors;
    tensors.add<std::int8_t>("m.weight", "I8", {1, 2}, {1, 2});
    tensors.add<float>("m.input_scale", "F32", {1}, {scale});
    tensors.add<float>("m.input_offset", "F32", {1}, {offset});
    tensors.add<std::int32_t>("m.quant_bias", "I32", {1}, {0});
    tensors.add<float>("m.deq_scale", "F32", {1}, {1.0F});
    EXPECT_THAT(read_error(**format, tensors, 1, 2), HasSubstr(word));
  }
}

TEST(Ascend, DynamicMixAndFloat) {
  Tensors tensors;
  tensors.add<std::int8_t>("m.weight", "I8", {2, 2}, {1, 2, 3, 4});
  tensors.add<std::uint16_t>("m.weight_scale", "BF16", {2, 1}, {to_bf16(0.5F).bits, to_bf16(0.25F).bits});
  tensors.add<float>("m.weight_offset", "F32", {2, 1}, {0.0F, 0.0F});
  for (const char* type : {"W8A8_DYNAMIC", "W8A8_MIX"}) {
    const auto format = format_of("{}", std::string(R"({"m.weight": ")") + type + "\"}");
    const LinearModule module = read(**format, tensors, 2, 2);
    ASSERT_TRUE(module.int8.has_value());
    EXPECT_FALSE(module.int8->input.has_value());
    EXPECT_FALSE(module.includes_bias);
    EXPECT_THAT(module.int8->scale, ElementsAre(0.5F, 0.25F));
  }
  const LinearModule weights_only = read(**format_of("{}", R"({"m.weight": "W8A16"})"), tensors, 2, 2);
  EXPECT_TRUE(weights_only.is_dequantised());
  EXPECT_THAT(row_of(weights_only, 1), ElementsAre(0.75F, 1.0F));
  EXPECT_FALSE((*format_of("{}", R"({"m.weight": "FLOAT"})"))->linear(tensors.index, "m", 2, 2)->has_value());
  EXPECT_THAT(read_error(**format_of("{}", R"({"other.weight": "FLOAT"})"), tensors, 2, 2), HasSubstr("does not list"));
  EXPECT_THAT(read_error(**format_of("{}", R"({"m.weight": "W4A4_FLATQUANT_DYNAMIC"})"), tensors, 2, 2),
              AllOf(HasSubstr("'m'"), HasSubstr("W4A4_FLATQUANT_DYNAMIC")));
  Tensors asymmetric;
  asymmetric.add<std::int8_t>("m.weight", "I8", {1, 2}, {1, 2});
  asymmetric.add<float>("m.weight_scale", "F32", {1, 1}, {0.5F});
  asymmetric.add<float>("m.weight_offset", "F32", {1, 1}, {3.0F});
  EXPECT_THAT(read_error(**format_of("{}", R"({"m.weight": "W8A8_DYNAMIC"})"), asymmetric, 1, 2),
              HasSubstr("weight_offset"));
}

TEST(Ascend, W4A8OfBothPackings) {
  // Two outputs, four inputs in groups of two.
  const std::vector<float> expected[] = {{-8 * 0.5F * 2, 7 * 0.5F * 2, 1 * 0.5F * 4, -1 * 0.5F * 4},
                                         {3 * 0.25F * 8, -3 * 0.25F * 8, 0.0F, 5 * 0.25F * 16}};
  Tensors plain, packed;
  plain.add<std::int8_t>("m.weight", "I8", {2, 4}, {-8, 7, 1, -1, 3, -3, 0, 5});
  const auto pair = [](int low, int high) { return static_cast<std::int8_t>((low & 15) | (high << 4)); };
  packed.add<std::int8_t>("m.weight", "I8", {1, 4}, {pair(-8, 3), pair(7, -3), pair(1, 0), pair(-1, 5)});
  for (Tensors* tensors : {&plain, &packed}) {
    tensors->add<float>("m.weight_scale", "F32", {2, 1}, {0.5F, 0.25F});
    tensors->add<float>("m.weight_scale_second", "F32", {2, 2}, {2.0F, 4.0F, 8.0F, 16.0F});
  }
  const std::string start = R"({"m.weight": "W4A8_DYNAMIC", "group_size": 2)";
  const auto old_format = format_of("{}", start + "}");
  const auto new_format = format_of("{}", start + R"(, "version": "1.0.0"})");
  for (std::int64_t row = 0; row < 2; ++row) {
    EXPECT_EQ(row_of(read(**old_format, plain, 2, 4), row), expected[row]);
    EXPECT_EQ(row_of(read(**new_format, packed, 2, 4), row), expected[row]);
  }
  EXPECT_THAT(read_error(**old_format, packed, 2, 4), HasSubstr("m.weight"));
}

TEST(QuantisedFormat, MethodsAreRefusedByName) {
  EXPECT_EQ(format_of("{}")->get(), nullptr);
  EXPECT_EQ(format_of(R"({"quantization_config": null})")->get(), nullptr);
  EXPECT_THAT(format_of(R"({"quantization_config": {"quant_method": "bitsandbytes"}})").error().message(),
              AllOf(HasSubstr("bitsandbytes"), HasSubstr("gptq")));
  EXPECT_THAT(format_of(R"({"quantization_config": 3})").error().message(), HasSubstr("not an object"));
  EXPECT_THAT(format_of(R"({"quantize": "w8a8_dynamic"})").error().message(),
              HasSubstr("quant_model_description.json"));
  EXPECT_THAT(format_of(R"({"quantization_config": {"quant_method": "fp8"}})", kStatic).error().message(),
              HasSubstr("both"));
  EXPECT_THAT(format_of("{}", R"({"version": "1.0.0"})").error().message(), HasSubstr("names no tensor"));
}

}  // namespace
}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
// Rows of every storage type. gguf_blocks.json holds random blocks and what the GGUF project's own Python package makes
// of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/json.h"
#include "model/checkpoint.h"

namespace tandem::model {
namespace {

std::vector<std::byte> from_hex(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

TensorView view_of(TensorType type, std::int64_t rows, std::int64_t cols, const std::vector<std::byte>& data) {
  TensorView view;
  view.type = type;
  view.rows = rows;
  view.cols = cols;
  view.data = data.data();
  view.bytes = data.size();
  return view;
}

class Blocks : public ::testing::TestWithParam<TensorType> {};

TEST_P(Blocks, MatchTheReferenceImplementation) {
  const auto file = read_json_file("tests/unit/model/gguf_blocks.json");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto& entry = file->as_object().at(tensor_type_name(GetParam())).as_object();
  const auto bytes = from_hex(std::string_view(entry.at("bytes").as_string()));
  const auto& values = entry.at("values").as_array();
  const auto block = tensor_block_values(GetParam());
  ASSERT_EQ(bytes.size(), 2 * tensor_block_bytes(GetParam()));
  ASSERT_EQ(values.size(), static_cast<std::size_t>(2 * block));
  // As one row of two blocks, and as two rows of one.
  std::vector<float> row(values.size());
  view_of(GetParam(), 1, 2 * block, bytes).read_row(0, row.data());
  std::vector<float> second(static_cast<std::size_t>(block));
  view_of(GetParam(), 2, block, bytes).read_row(1, second.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto expected = values[i].to_number<float>();
    EXPECT_NEAR(row[i], expected, 1e-6F * std::max(1.0F, std::abs(expected))) << "value " << i;
    if (i >= second.size()) {
      EXPECT_EQ(row[i], second[i - second.size()]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Blocks,
                         ::testing::Values(TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                           TensorType::kQ5_1, TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K),
                         [](const ::testing::TestParamInfo<TensorType>& parameter) {
                           return std::string(tensor_type_name(parameter.param));
                         });

TEST(TensorView, PlainTypesNeedNoAlignment) {
  std::vector<std::byte> data(1 + 3 * 4);
  const float values[] = {1.5F, -2.0F, 3.25F};
  std::memcpy(data.data() + 1, values, sizeof(values));
  TensorView view = view_of(TensorType::kF32, 3, 1, data);
  view.data = data.data() + 1;
  float out = 0;
  view.read_row(2, &out);
  EXPECT_EQ(out, 3.25F);
  const std::uint16_t half[] = {to_bf16(0.5F).bits, to_bf16(-8.0F).bits};
  std::memcpy(data.data() + 1, half, sizeof(half));
  view.type = TensorType::kBf16;
  view.rows = 1;
  view.cols = 2;
  float pair[2];
  view.read_row(0, pair);
  EXPECT_THAT(pair, ::testing::ElementsAre(0.5F, -8.0F));
  const std::uint16_t f16[] = {0x3C00, 0xC500};
  std::memcpy(data.data() + 1, f16, sizeof(f16));
  view.type = TensorType::kF16;
  view.read_row(0, pair);
  EXPECT_THAT(pair, ::testing::ElementsAre(1.0F, -5.0F));
}

TEST(TensorView, InterleavedRowsComeInHuggingFaceOrder) {
  // Two heads of four rows; row r holds r. Stored order is that of llama.cpp: 0 2 1 3 of each head's halves.
  std::vector<std::byte> data(8 * sizeof(float));
  for (int i = 0; i < 8; ++i) {
    const float value = static_cast<float>(i);
    std::memcpy(data.data() + static_cast<std::size_t>(i) * sizeof(float), &value, sizeof(float));
  }
  TensorView matrix = view_of(TensorType::kF32, 8, 1, data);
  matrix.interleaved_head_dim = 4;
  std::vector<float> rows(8);
  for (int i = 0; i < 8; ++i) matrix.read_row(i, &rows[static_cast<std::size_t>(i)]);
  EXPECT_THAT(rows, ::testing::ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  TensorView bias = view_of(TensorType::kF32, 1, 8, data);
  bias.interleaved_head_dim = 4;
  bias.read_row(0, rows.data());
  EXPECT_THAT(rows, ::testing::ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

}  // namespace
}  // namespace tandem::model

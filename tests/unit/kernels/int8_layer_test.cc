// SPDX-License-Identifier: Apache-2.0
// Layers that are int8 already (Ops::pack_int8), static inputs, and joined layers: the specification's formulas in
// integers, bit for bit on every instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels_test_support.h"

namespace tandem::kernels {
namespace {

/// A layer in plain integers.
struct IntegerLayer {
  std::int64_t n;
  std::int64_t k;
  std::vector<std::int8_t> weights;
  std::vector<float> scale;
  std::vector<std::int32_t> start;
  std::vector<float> bias;
  std::optional<StaticInput> input;

  IntegerLayer(std::int64_t n_, std::int64_t k_, std::uint64_t seed) : n(n_), k(k_) {
    for (const float value : random_floats(static_cast<std::size_t>(n * k), seed, 128.0F))
      weights.push_back(static_cast<std::int8_t>(std::max(-128.0F, std::min(127.0F, std::nearbyint(value)))));
    weights[0] = -128;
    for (const float value : random_floats(static_cast<std::size_t>(n), seed + 1))
      scale.push_back(0.001F + 0.01F * std::fabs(value));
  }

  std::unique_ptr<PackedLinear> pack(const Ops& ops, ThreadTeam& team) const {
    Int8Layer layer;
    layer.read_row = [this](std::int64_t row, std::int8_t* out) {
      std::memcpy(out, weights.data() + row * k, static_cast<std::size_t>(k));
    };
    layer.scale = scale;
    layer.start = start;
    layer.bias = bias;
    layer.input = input;
    return ops.pack_int8(team, n, k, layer);
  }

  /// The formulas of model_formats.md 5.1 and 5.2.
  std::vector<float> expected(const std::vector<float>& x, std::int64_t rows) const {
    std::vector<float> y;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* in = x.data() + row * k;
      float x_scale = 1.0F;
      if (!input) {
        x_scale = 0.0F;
        for (std::int64_t i = 0; i < k; ++i) x_scale = std::max(x_scale, std::fabs(in[i]));
        x_scale /= 127.0F;
      }
      for (std::int64_t column = 0; column < n; ++column) {
        const auto at = static_cast<std::size_t>(column);
        std::int64_t sum = start.empty() ? 0 : start[at];
        for (std::int64_t i = 0; i < k; ++i)
          sum += std::int64_t{weights[static_cast<std::size_t>(column * k + i)]} * quantised(in[i], x_scale);
        const float value = static_cast<float>(sum) * (x_scale * scale[at]);
        y.push_back(value + (bias.empty() ? 0.0F : bias[at]));
      }
    }
    return y;
  }

  int quantised(float x, float x_scale) const {
    if (!input) return static_cast<int>(std::nearbyint(x / x_scale));
    const double q = static_cast<double>(std::nearbyint(x / input->scale + input->offset)) + input->zero_point;
    return static_cast<int>(std::max(-128.0, std::min(127.0, q)));
  }
};

std::vector<float> run(const Ops& ops, ThreadTeam& team, const PackedLinear& layer, const std::vector<float>& x,
                       std::int64_t rows) {
  std::vector<float> y(static_cast<std::size_t>(rows * layer.out_features()), poison());
  ops.linear(team, layer, x.data(), layer.in_features(), rows, y.data(), layer.out_features(), Epilogue::kStore);
  return y;
}

class Int8LayerTest : public EveryIsa {};

TEST_P(Int8LayerTest, StaticWorkedExample) {
  // model_formats.md 5.1.
  ThreadTeam team(1);
  IntegerLayer layer(2, 3, 1);
  layer.weights = {10, -20, 127, -128, 0, 64};
  layer.input = StaticInput{0.05F, -28.0F, 0};
  layer.scale = {0.05F * 0.01F, 0.05F * 0.02F};
  layer.start = {4276, -2042};
  const auto y = run(ops(), team, *layer.pack(ops(), team), {0.3F, -1.0F, 2.5F}, 1);
  EXPECT_FLOAT_EQ(y[0], 3.905F);
  EXPECT_FLOAT_EQ(y[1], 2.182F);
}

TEST_P(Int8LayerTest, DynamicWorkedExample) {
  ThreadTeam team(1);
  IntegerLayer layer(2, 3, 1);
  layer.weights = {10, -20, 127, -128, 0, 64};
  layer.scale = {0.01F, 0.02F};
  const auto y = run(ops(), team, *layer.pack(ops(), team), {0.3F, -1.0F, 2.5F}, 1);
  EXPECT_NEAR(y[0], 3.40531, 1e-5);
  EXPECT_NEAR(y[1], 2.44409, 1e-5);
}

TEST_P(Int8LayerTest, IntegersOfEveryShapeAreExact) {
  ThreadTeam team(2);
  const std::optional<StaticInput> inputs[] = {std::nullopt, StaticInput{0.013F, -28.0F, 0},
                                               StaticInput{0.02F, 0.0F, 17}, StaticInput{0.001F, 127.0F, 0}};
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 3}, {17, 7}, {33, 129}, {320, 31}}) {
    for (const auto& input : inputs) {
      IntegerLayer layer(n, k, 11);
      layer.input = input;
      if (n % 2 == 1) {
        layer.bias = random_floats(static_cast<std::size_t>(n), 3);
        for (std::int64_t i = 0; i < n; ++i) layer.start.push_back(static_cast<std::int32_t>(1000 - 37 * i));
      }
      const auto packed = layer.pack(ops(), team);
      for (const std::int64_t rows : {1, 2, 5, 13, 70}) {
        const auto x = random_floats(static_cast<std::size_t>(rows * k), 77);
        EXPECT_TRUE(bit_equal(run(ops(), team, *packed, x, rows), layer.expected(x, rows)))
            << "n " << n << " k " << k << " rows " << rows << " static " << input.has_value();
      }
    }
  }
}

TEST_P(Int8LayerTest, StaticRoundsHalfToEvenAndClamps) {
  ThreadTeam team(1);
  const std::vector<float> x = {0.5F, 1.5F, 2.5F, -0.5F, 126.5F, 127.5F, 1e9F, -1e9F, -128.5F, 3e38F, -3e38F, 0.0F};
  const auto k = static_cast<std::int64_t>(x.size());
  // Column i shows the i-th integer.
  const auto integers = [&](const StaticInput& input) {
    IntegerLayer layer(k, k, 1);
    std::fill(layer.weights.begin(), layer.weights.end(), std::int8_t{0});
    for (std::int64_t i = 0; i < k; ++i) layer.weights[static_cast<std::size_t>(i * k + i)] = 1;
    std::fill(layer.scale.begin(), layer.scale.end(), 1.0F);
    layer.input = input;
    return run(ops(), team, *layer.pack(ops(), team), x, 1);
  };
  EXPECT_EQ(integers({1.0F, 0.0F, 0}), (std::vector<float>{0, 2, 2, 0, 126, 127, 127, -128, -128, 127, -128, 0}));
  // A zero point before the rounding moves which half is even; after it, it does not.
  EXPECT_EQ(integers({1.0F, 1.0F, 0}), (std::vector<float>{2, 2, 4, 0, 127, 127, 127, -128, -128, 127, -128, 1}));
  EXPECT_EQ(integers({1.0F, 0.0F, 1}), (std::vector<float>{1, 3, 3, 1, 127, 127, 127, -128, -127, 127, -128, 1}));
}

TEST_P(Int8LayerTest, ARowThatIsNotFiniteBecomesNanAlone) {
  ThreadTeam team(1);
  IntegerLayer layer(20, 9, 4);
  layer.input = StaticInput{0.02F, -3.0F, 0};
  const auto packed = layer.pack(ops(), team);
  auto x = random_floats(4 * 9, 5);
  x[9 + 2] = std::numeric_limits<float>::quiet_NaN();
  x[3 * 9] = std::numeric_limits<float>::infinity();
  const auto y = run(ops(), team, *packed, x, 4);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 20 % 2 == 1) << i;
}

/// Layers of all kinds over the same 40 inputs.
std::vector<std::unique_ptr<PackedLinear>> mixed_parts(const Ops& ops, ThreadTeam& team) {
  IntegerLayer first(19, 40, 6);
  first.input = StaticInput{0.02F, -3.0F, 0};
  IntegerLayer second(16, 40, 7);
  second.input = StaticInput{0.01F, 5.0F, 0};
  IntegerLayer dynamic(5, 40, 8);
  const auto floats = random_floats(7 * 40, 9);
  const auto read = [&](std::int64_t row, float* out) { std::copy_n(floats.data() + row * 40, 40, out); };
  std::vector<std::unique_ptr<PackedLinear>> parts;
  parts.push_back(first.pack(ops, team));
  parts.push_back(second.pack(ops, team));
  parts.push_back(dynamic.pack(ops, team));
  parts.push_back(ops.pack_linear(team, WeightType::kBf16, 7, 40, read, nullptr));
  return parts;
}

TEST_P(Int8LayerTest, JoinedLayersAreTheirPartsSideBySide) {
  ThreadTeam team(2);
  const auto parts = mixed_parts(ops(), team);
  const auto joined = ops().join(mixed_parts(ops(), team));
  EXPECT_EQ(joined->out_features(), 19 + 16 + 5 + 7);
  EXPECT_EQ(joined->in_features(), 40);
  const std::int64_t rows = 9;
  const auto x = random_floats(rows * 40, 10);
  const auto y = run(ops(), team, *joined, x, rows);
  auto added = random_floats(static_cast<std::size_t>(rows) * 47, 12);
  const auto residual = added;
  ops().linear(team, *joined, x.data(), 40, rows, added.data(), 47, Epilogue::kAdd);
  std::int64_t column = 0;
  for (const auto& part : parts) {
    const auto alone = run(ops(), team, *part, x, rows);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < part->out_features(); ++i) {
        const auto at = static_cast<std::size_t>(row * 47 + column + i);
        EXPECT_EQ(y[at], alone[static_cast<std::size_t>(row * part->out_features() + i)]);
        EXPECT_EQ(added[at], residual[at] + y[at]);
      }
    column += part->out_features();
  }
}

TEST_P(Int8LayerTest, GroupsMayBeJoinedAndStatic) {
  ThreadTeam team(2);
  const auto joined = ops().join(mixed_parts(ops(), team));
  IntegerLayer plain(47, 40, 13);
  plain.input = StaticInput{0.03F, 1.0F, 0};
  const auto single = plain.pack(ops(), team);
  const auto x = random_floats(10 * 40, 14);
  std::vector<const float*> addresses;
  for (std::size_t row = 0; row < 10; ++row) addresses.push_back(x.data() + (9 - row) * 40);
  const RowGroup groups[] = {{single.get(), 3}, {joined.get(), 5}, {single.get(), 2}};
  std::vector<float> y(10 * 50, poison());
  ops().grouped_linear(team, groups, addresses.data(), y.data(), 50);
  const auto of_single = run(ops(), team, *single, x, 10);
  const auto of_joined = run(ops(), team, *joined, x, 10);
  for (std::size_t row = 0; row < 10; ++row) {
    const auto& expected = row >= 3 && row < 8 ? of_joined : of_single;
    for (std::size_t i = 0; i < 47; ++i) EXPECT_EQ(y[row * 50 + i], expected[(9 - row) * 47 + i]) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Int8LayerTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

}  // namespace
}  // namespace tandem::kernels

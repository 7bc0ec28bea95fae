// SPDX-License-Identifier: Apache-2.0
// RMSNorm, RoPE and SiLU of every implementation: against double, in place, and batch invariance.
#include "kernels_test_support.h"

namespace tandem::kernels {
namespace {

class RowsTest : public EveryIsa {};

TEST_P(RowsTest, RmsNormMatchesDoubleAndKeepsStrides) {
  ThreadTeam team(2);
  for (const std::int64_t cols : {1, 7, 8, 16, 31, 64, 80, 576, 1000}) {
    const std::int64_t rows = 33;
    const std::int64_t ldx = cols + 3;
    const std::int64_t ldy = cols + 5;
    const auto x = random_floats(static_cast<std::size_t>(rows * ldx), 1, 3.0F);
    const auto weight = random_floats(static_cast<std::size_t>(cols), 2);
    std::vector<float> y(static_cast<std::size_t>(rows * ldy), 9.0F);
    ops().rms_norm(team, x.data(), ldx, weight.data(), nullptr, 1e-6F, rows, cols, y.data(), ldy);
    for (std::int64_t row = 0; row < rows; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < cols; ++i) {
        squares += static_cast<double>(x[static_cast<std::size_t>(row * ldx + i)]) *
                   x[static_cast<std::size_t>(row * ldx + i)];
      }
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(cols) + 1e-6);
      for (std::int64_t i = 0; i < cols; ++i) {
        const double expected =
            weight[static_cast<std::size_t>(i)] * factor * x[static_cast<std::size_t>(row * ldx + i)];
        ASSERT_NEAR(y[static_cast<std::size_t>(row * ldy + i)], expected, 3e-6 * std::fmax(1.0, std::fabs(expected)))
            << "cols " << cols;
      }
      for (std::int64_t i = cols; i < ldy; ++i) ASSERT_EQ(y[static_cast<std::size_t>(row * ldy + i)], 9.0F);
    }
    // In place, one row at a time, and with another number of threads: the same bits.
    ThreadTeam three(3);
    auto in_place = x;
    ops().rms_norm(three, in_place.data(), ldx, weight.data(), nullptr, 1e-6F, rows, cols, in_place.data(), ldx);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<float> alone(static_cast<std::size_t>(cols));
      ops().rms_norm(team, x.data() + row * ldx, ldx, weight.data(), nullptr, 1e-6F, 1, cols, alone.data(), cols);
      ASSERT_TRUE(bit_equal(alone, {y.data() + row * ldy, y.data() + row * ldy + cols}));
      ASSERT_TRUE(bit_equal(alone, {in_place.data() + row * ldx, in_place.data() + row * ldx + cols}));
    }
  }
}

TEST_P(RowsTest, RopeTurnsPairs) {
  ThreadTeam team(2);
  for (const std::int32_t head_dim : {2, 6, 8, 16, 32, 64, 80, 128}) {
    const std::int32_t heads = 3;
    const std::int64_t rows = 40;
    const std::int64_t ldx = heads * head_dim + 10;
    const int half = head_dim / 2;
    const auto cos = random_floats(static_cast<std::size_t>(100 * half), 5);
    const auto sin = random_floats(static_cast<std::size_t>(100 * half), 6);
    std::vector<std::int32_t> positions;
    for (std::int32_t row = 0; row < rows; ++row) positions.push_back(row * 7 % 100);
    const auto before = random_floats(static_cast<std::size_t>(rows * ldx), 7);
    auto x = before;
    ops().rope(team, x.data(), ldx, rows, heads, head_dim, positions.data(), cos.data(), sin.data());
    auto expected = before;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        for (int i = 0; i < half; ++i) {
          const auto at = static_cast<std::size_t>(row * ldx + head * head_dim + i);
          const auto angle = static_cast<std::size_t>(positions[static_cast<std::size_t>(row)] * half + i);
          const double a = before[at];
          const double b = before[at + static_cast<std::size_t>(half)];
          expected[at] = static_cast<float>(a * cos[angle] - b * sin[angle]);
          expected[at + static_cast<std::size_t>(half)] = static_cast<float>(b * cos[angle] + a * sin[angle]);
        }
      }
    }
    EXPECT_TRUE(near(x, expected, 3e-7)) << "head_dim " << head_dim;
    auto alone = before;
    for (std::int64_t row = 0; row < rows; ++row) {
      ops().rope(team, alone.data() + row * ldx, ldx, 1, heads, head_dim, positions.data() + row, cos.data(),
                 sin.data());
    }
    EXPECT_TRUE(bit_equal(alone, x));
  }
}

TEST_P(RowsTest, SiluMulMatchesDoubleAlsoAtTheEnds) {
  ThreadTeam team(2);
  for (const std::int64_t cols : {1, 5, 16, 33, 100, 1536}) {
    const std::int64_t rows = 9;
    auto gate_up = random_floats(static_cast<std::size_t>(rows * 2 * cols), 8, 12.0F);
    gate_up[0] = -1000.0F;
    gate_up[static_cast<std::size_t>(2 * cols)] = 1000.0F;
    gate_up[static_cast<std::size_t>(4 * cols)] = -88.5F;
    gate_up[static_cast<std::size_t>(6 * cols)] = 0.0F;
    std::vector<float> y(static_cast<std::size_t>(rows * cols));
    ops().silu_mul(team, gate_up.data(), rows, cols, y.data());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < cols; ++i) {
        const double gate = gate_up[static_cast<std::size_t>(row * 2 * cols + i)];
        const double expected =
            gate / (1.0 + std::exp(-gate)) * gate_up[static_cast<std::size_t>(row * 2 * cols + cols + i)];
        ASSERT_NEAR(y[static_cast<std::size_t>(row * cols + i)], expected, 1e-6 * std::fmax(1.0, std::fabs(expected)))
            << "cols " << cols << " gate " << gate;
      }
      std::vector<float> alone(static_cast<std::size_t>(cols));
      ops().silu_mul(team, gate_up.data() + row * 2 * cols, 1, cols, alone.data());
      ASSERT_TRUE(bit_equal(alone, {y.data() + row * cols, y.data() + (row + 1) * cols}));
    }
  }
}

TEST_P(RowsTest, BrokenValuesShow) {
  ThreadTeam team(1);
  const float nan = std::nanf("");
  const std::vector<float> weight(20, 1.0F);
  std::vector<float> x(20, 1.0F);
  x[3] = nan;
  std::vector<float> y(20);
  ops().rms_norm(team, x.data(), 20, weight.data(), nullptr, 1e-6F, 1, 20, y.data(), 20);
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
  std::vector<float> gate_up(40, 1.0F);
  gate_up[3] = nan;
  ops().silu_mul(team, gate_up.data(), 1, 20, y.data());
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_FALSE(std::isnan(y[4]));
}

INSTANTIATE_TEST_SUITE_P(Kernels, RowsTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

}  // namespace
}  // namespace tandem::kernels

// SPDX-License-Identifier: Apache-2.0
// Linear layers of every implementation: against sums in double, exactness of int8, and batch invariance.
#include <cstring>
#include <limits>
#include <tuple>

#include "base/float16.h"
#include "kernels_test_support.h"

namespace tandem::kernels {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kBf16, WeightType::kInt8};

struct Layer {
  std::int64_t n;
  std::int64_t k;
  std::vector<float> weights;
  std::vector<float> bias;

  Layer(std::int64_t n_, std::int64_t k_, bool with_bias, std::uint64_t seed)
      : n(n_), k(k_), weights(random_floats(static_cast<std::size_t>(n_ * k_), seed, 0.5F)) {
    if (with_bias) bias = random_floats(static_cast<std::size_t>(n_), seed + 1);
  }

  std::unique_ptr<PackedLinear> pack(const Ops& ops, ThreadTeam& team, WeightType type) const {
    const auto read = [this](std::int64_t row, float* out) {
      std::memcpy(out, weights.data() + row * k, static_cast<std::size_t>(k) * sizeof(float));
    };
    return ops.pack_linear(team, type, n, k, read, bias.empty() ? nullptr : bias.data());
  }
};

/// The int8 values and the scale of a vector as the specification has them.
std::pair<std::vector<int>, float> quantise(const float* x, std::int64_t count, float smallest_scale) {
  float most = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) most = std::fmax(most, std::fabs(x[i]));
  const float scale = std::fmax(most / 127.0F, smallest_scale);
  std::vector<int> q(static_cast<std::size_t>(count), 0);
  if (scale == 0.0F) return {q, scale};
  for (std::int64_t i = 0; i < count; ++i) {
    q[static_cast<std::size_t>(i)] = static_cast<int>(std::nearbyint(x[i] / scale));
  }
  return {q, scale};
}

/// Sums in double (in integers for int8) of what the layer's type makes of weights and inputs.
std::vector<float> expected_output(const Layer& layer, WeightType type, const std::vector<float>& x,
                                   std::int64_t rows) {
  std::vector<float> y;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* in = x.data() + row * layer.k;
    const auto [xq, x_scale] = quantise(in, layer.k, 0.0F);
    for (std::int64_t n = 0; n < layer.n; ++n) {
      const float* w = layer.weights.data() + n * layer.k;
      const float bias = layer.bias.empty() ? 0.0F : layer.bias[static_cast<std::size_t>(n)];
      if (type == WeightType::kInt8) {
        const auto [wq, w_scale] = quantise(w, layer.k, 1.2e-7F);
        int sum = 0;
        for (std::size_t k = 0; k < xq.size(); ++k) sum += xq[k] * wq[k];
        const float scaled = static_cast<float>(sum) * (x_scale * w_scale);
        y.push_back(scaled + bias);
        continue;
      }
      double sum = bias;
      for (std::int64_t k = 0; k < layer.k; ++k) {
        const bool bf16 = type == WeightType::kBf16;
        sum += bf16 ? static_cast<double>(to_float(to_bf16(in[k]))) * to_float(to_bf16(w[k]))
                    : static_cast<double>(in[k]) * w[k];
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

std::vector<float> run_linear(const Ops& ops, ThreadTeam& team, const PackedLinear& packed, const std::vector<float>& x,
                              std::int64_t rows) {
  std::vector<float> y(static_cast<std::size_t>(rows * packed.out_features()), poison());
  ops.linear(team, packed, x.data(), packed.in_features(), rows, y.data(), packed.out_features(), Epilogue::kStore);
  return y;
}

class LinearTest : public EveryIsa {};

TEST_P(LinearTest, MatchesSumsInDouble) {
  ThreadTeam team(2);
  const std::tuple<std::int64_t, std::int64_t> shapes[] = {{1, 1},   {5, 3},    {16, 4},    {17, 7},  {33, 129},
                                                           {48, 80}, {100, 66}, {257, 192}, {320, 31}};
  for (const WeightType type : kTypes) {
    for (const auto& [n, k] : shapes) {
      const Layer layer(n, k, n % 2 == 1, 11);
      const auto packed = layer.pack(ops(), team, type);
      EXPECT_EQ(packed->out_features(), n);
      EXPECT_EQ(packed->in_features(), k);
      EXPECT_GE(packed->bytes(), static_cast<std::size_t>(n * k) * (type == WeightType::kInt8 ? 1 : 2));
      for (const std::int64_t rows : {1, 2, 3, 5, 8, 13, 70}) {
        const auto x = random_floats(static_cast<std::size_t>(rows * k), 77);
        const auto y = run_linear(ops(), team, *packed, x, rows);
        const auto expected = expected_output(layer, type, x, rows);
        if (type == WeightType::kInt8) {
          EXPECT_TRUE(bit_equal(y, expected)) << "n " << n << " k " << k << " rows " << rows;
        } else {
          EXPECT_TRUE(near(y, expected, 2e-6)) << "type " << int(type) << " n " << n << " k " << k << " rows " << rows;
        }
      }
    }
  }
}

TEST_P(LinearTest, RowsAndThreadsAndStridesChangeNoBit) {
  const std::int64_t k = 150;
  const std::int64_t rows = 70;
  for (const std::int64_t n : {40, 337}) {
    for (const WeightType type : kTypes) {
      ThreadTeam one(1);
      const Layer layer(n, k, true, 5);
      const auto packed = layer.pack(ops(), one, type);
      const auto x = random_floats(static_cast<std::size_t>(rows * k), 3);
      const auto whole = run_linear(ops(), one, *packed, x, rows);
      for (const int threads : {2, 3, 4}) {
        ThreadTeam team(threads);
        EXPECT_TRUE(bit_equal(run_linear(ops(), team, *packed, x, rows), whole)) << threads << " threads";
        EXPECT_TRUE(bit_equal(run_linear(ops(), team, *layer.pack(ops(), team, type), x, rows), whole));
      }
      for (const std::int64_t chunk : {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 17, 25}) {
        std::vector<float> y(whole.size());
        for (std::int64_t row = 0; row < rows; row += chunk) {
          const std::int64_t count = std::min(chunk, rows - row);
          ops().linear(one, *packed, x.data() + row * k, k, count, y.data() + row * n, n, Epilogue::kStore);
        }
        EXPECT_TRUE(bit_equal(y, whole)) << "type " << int(type) << " n " << n << " chunks of " << chunk;
      }
    }
  }
}

TEST_P(LinearTest, StridesAreKeptAndNothingElseIsWritten) {
  ThreadTeam team(2);
  const std::int64_t n = 37;
  const std::int64_t k = 21;
  const std::int64_t rows = 9;
  for (const WeightType type : kTypes) {
    const Layer layer(n, k, true, 8);
    const auto packed = layer.pack(ops(), team, type);
    const auto x = random_floats(static_cast<std::size_t>(rows * k), 4);
    const auto dense = run_linear(ops(), team, *packed, x, rows);
    std::vector<float> wide_x(static_cast<std::size_t>(rows * 30), poison());
    std::vector<float> wide_y(static_cast<std::size_t>(rows * 50), poison());
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(x.data() + row * k, k, wide_x.data() + row * 30);
    }
    ops().linear(team, *packed, wide_x.data(), 30, rows, wide_y.data(), 50, Epilogue::kStore);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<float> part(wide_y.data() + row * 50, wide_y.data() + row * 50 + n);
      EXPECT_TRUE(bit_equal(part, {dense.data() + row * n, dense.data() + (row + 1) * n}));
      for (std::int64_t i = n; i < 50; ++i) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(wide_y[static_cast<std::size_t>(row * 50 + i)]), 0x7fc12345U);
      }
    }
  }
}

TEST_P(LinearTest, AddsToTheResidual) {
  ThreadTeam team(2);
  for (const WeightType type : kTypes) {
    const Layer layer(45, 64, true, 9);
    const auto packed = layer.pack(ops(), team, type);
    const auto x = random_floats(10 * 64, 6);
    const auto residual = random_floats(10 * 45, 7);
    const auto product = run_linear(ops(), team, *packed, x, 10);
    auto expected = residual;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += product[i];
    auto y = residual;
    ops().linear(team, *packed, x.data(), 64, 10, y.data(), 45, Epilogue::kAdd);
    EXPECT_TRUE(bit_equal(y, expected)) << "type " << int(type);
  }
}

TEST_P(LinearTest, DynamicW8A8WorkedExample) {
  // model_formats.md 5.1. The rows are multiples of their scales, so that quantisation finds exactly these integers;
  // 0.02 * 127 / 128 stands for the second row, whose largest integer is -128 there.
  ThreadTeam team(1);
  const std::vector<float> weights = {0.10F, -0.20F, 1.27F, -1.27F, 0.0F, 0.64F};
  const std::vector<float> bias = {0.5F, -0.25F};
  const auto read = [&](std::int64_t row, float* out) { std::copy_n(weights.data() + row * 3, 3, out); };
  const auto packed = ops().pack_linear(team, WeightType::kInt8, 2, 3, read, bias.data());
  const std::vector<float> x = {0.3F, -1.0F, 2.5F};
  const auto y = run_linear(ops(), team, *packed, x, 1);
  // s_t = 2.5/127, xq = [15, -51, 127]; Wq = [[10, -20, 127], [-127, 0, 64]] with scales 0.01.
  EXPECT_NEAR(y[0], (15 * 10 + 51 * 20 + 127 * 127) * (2.5 / 127) * 0.01 + 0.5, 1e-5);
  EXPECT_NEAR(y[0] - 0.5, 3.40531, 1e-4);
  EXPECT_NEAR(y[1], (-15 * 127 + 127 * 64) * (2.5 / 127) * 0.01 - 0.25, 1e-5);
}

TEST_P(LinearTest, RoundsHalfToEven) {
  ThreadTeam team(1);
  // Largest value 127: the scale is 1, and the halves are exact.
  const std::vector<float> x = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F};
  const std::vector<float> expected = {127.0F, 0.0F, 2.0F, 2.0F, 0.0F, -2.0F, -2.0F, 126.0F};
  const auto read = [](std::int64_t row, float* out) {
    for (int k = 0; k < 8; ++k) out[k] = k == row ? 1.0F : 0.0F;
  };
  const auto packed = ops().pack_linear(team, WeightType::kInt8, 8, 8, read, nullptr);
  const auto y = run_linear(ops(), team, *packed, x, 1);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(y[i], expected[i], 1e-4) << i;
}

TEST_P(LinearTest, ExtremeInt8SumsDoNotSaturate) {
  ThreadTeam team(1);
  const std::int64_t k = 4096;
  for (const float sign : {1.0F, -1.0F}) {
    const auto read = [&](std::int64_t, float* out) { std::fill_n(out, k, sign); };
    const auto packed = ops().pack_linear(team, WeightType::kInt8, 20, k, read, nullptr);
    const std::vector<float> x(static_cast<std::size_t>(k), -1.0F);
    const auto y = run_linear(ops(), team, *packed, x, 1);
    for (const float value : y) EXPECT_NEAR(value, -sign * static_cast<float>(k), 1e-2);
  }
}

TEST_P(LinearTest, ZeroTinyAndBrokenRowsStayApart) {
  ThreadTeam team(1);
  const Layer layer(40, 32, false, 12);
  for (const WeightType type : kTypes) {
    const auto packed = layer.pack(ops(), team, type);
    const std::vector<float> good = random_floats(32, 2);
    std::vector<float> x(5 * 32, 0.0F);
    std::copy(good.begin(), good.end(), x.begin());
    for (std::size_t i = 0; i < 32; ++i) x[2 * 32 + i] = 1e-44F;  // denormal
    x[3 * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
    std::copy(good.begin(), good.end(), x.begin() + 4 * 32);
    const auto y = run_linear(ops(), team, *packed, x, 5);
    const auto alone = run_linear(ops(), team, *packed, good, 1);
    const auto row = [&](std::int64_t r) { return std::vector<float>(y.data() + r * 40, y.data() + (r + 1) * 40); };
    EXPECT_TRUE(bit_equal(row(0), alone));
    EXPECT_TRUE(bit_equal(row(4), alone));
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(row(1)[static_cast<std::size_t>(i)], 0.0F);
      EXPECT_LT(std::fabs(row(2)[static_cast<std::size_t>(i)]), 1e-40F);
      EXPECT_TRUE(std::isnan(row(3)[static_cast<std::size_t>(i)])) << "type " << int(type);
    }
  }
}

TEST_P(LinearTest, AgreesWithTheOracle) {
  ThreadTeam team(2);
  const Ops& oracle = ops_of(Isa::kPortable);
  for (const WeightType type : kTypes) {
    const Layer layer(193, 777, true, 21);
    const auto x = random_floats(24 * 777, 22, 4.0F);
    const auto expected = run_linear(oracle, team, *layer.pack(oracle, team, type), x, 24);
    const auto found = run_linear(ops(), team, *layer.pack(ops(), team, type), x, 24);
    if (type == WeightType::kInt8) {
      EXPECT_TRUE(bit_equal(found, expected));
    } else {
      EXPECT_TRUE(near(found, expected, 5e-6)) << "type " << int(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

TEST(Dispatch, NamesAndRefusals) {
  EXPECT_EQ(isa_name(Isa::kPortable), "portable");
  EXPECT_EQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_EQ(isa_name(Isa::kAvx512), "avx512");
  EXPECT_EQ(isa_name(Isa::kNeon), "neon");
  EXPECT_EQ(isa_name(Isa::kDotprod), "dotprod");
  ASSERT_TRUE(ops_for(Isa::kPortable));
  ASSERT_TRUE(ops_for(detect_isa()));
  EXPECT_EQ(ops_for(detect_isa()).value()->isa(), detect_isa());
  int refused = 0;
  for (const Isa isa : kAllIsas) {
    if (const auto ops = ops_for(isa)) {
      EXPECT_EQ(ops.value()->isa(), isa);
    } else {
      EXPECT_EQ(ops.error().code(), Code::kUnsupported);
      ++refused;
    }
  }
  EXPECT_GE(refused, 2) << "no CPU has the instruction sets of both architectures";
}

}  // namespace
}  // namespace tandem::kernels

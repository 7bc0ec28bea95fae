// SPDX-License-Identifier: Apache-2.0
// What a mixture of experts needs: grouped linear layers have the bits of linear layers, however rows and threads fall;
// the choice of experts, with ties; the weighted sum.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels_test_support.h"

namespace tandem::kernels {
namespace {

class ExpertsTest : public EveryIsa {
 protected:
  static std::unique_ptr<PackedLinear> pack(const Ops& ops, WeightType type, std::int64_t n, std::int64_t k,
                                            std::uint64_t seed) {
    ThreadTeam team(1);
    const auto values = random_floats(static_cast<std::size_t>(n * k), seed, 0.5F);
    const auto bias = random_floats(static_cast<std::size_t>(n), seed + 100);
    const auto read = [&](std::int64_t row, float* out) {
      std::memcpy(out, values.data() + row * k, static_cast<std::size_t>(k) * sizeof(float));
    };
    return ops.pack_linear(team, type, n, k, read, bias.data());
  }
};

TEST_P(ExpertsTest, GroupsHaveTheBitsOfLinearLayers) {
  constexpr std::int64_t kStride = 240;
  struct Shape {
    std::int64_t n;
    std::int64_t k;
  };
  // The first is done on one thread, the last has more panels than threads and rows of more than one piece.
  for (const auto& [n, k] : {Shape{5, 3}, Shape{40, 24}, Shape{225, 300}}) {
    std::vector<std::unique_ptr<PackedLinear>> experts;
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt8})
      experts.push_back(pack(ops(), type, n, k, experts.size() + 1));
    for (const std::vector<std::int64_t>& counts : std::vector<std::vector<std::int64_t>>{
             {1, 0, 0, 0}, {0, 0, 0, 1}, {1, 1, 1, 1}, {3, 0, 17, 2}, {0, 400, 1, 9}, {2, 1, 0, 1500}}) {
      const std::int64_t rows = counts[0] + counts[1] + counts[2] + counts[3];
      // Rows stand in any order, and some are taken twice.
      const std::int64_t sources = rows / 2 + 1;
      const auto x = random_floats(static_cast<std::size_t>(sources * k), 9);
      std::vector<const float*> inputs;
      for (std::int64_t row = 0; row < rows; ++row) inputs.push_back(x.data() + (row * 7 + 3) % sources * k);
      std::vector<float> expected(static_cast<std::size_t>(rows * kStride), 3.0F);
      std::vector<RowGroup> groups;
      ThreadTeam one(1);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        groups.push_back({experts[i].get(), counts[i]});
        for (std::int64_t j = 0; j < counts[i]; ++j, ++row)
          ops().linear(one, *experts[i], inputs[static_cast<std::size_t>(row)], k, 1, expected.data() + row * kStride,
                       kStride, Epilogue::kStore);
      }
      for (const int threads : {1, 2, 3, 7}) {
        ThreadTeam team(threads);
        std::vector<float> y(expected.size(), 3.0F);
        ops().grouped_linear(team, groups, inputs.data(), y.data(), kStride);
        EXPECT_TRUE(bit_equal(y, expected)) << "N " << n << ", " << rows << " rows, " << threads << " threads";
      }
    }
    ThreadTeam team(2);
    ops().grouped_linear(team, {}, nullptr, nullptr, 0);
    const RowGroup nothing{experts[0].get(), 0};
    ops().grouped_linear(team, std::span(&nothing, 1), nullptr, nullptr, 0);
  }
}

TEST_P(ExpertsTest, GroupsMayBeStaticOrJoined) {
  constexpr std::int64_t kN = 70;
  constexpr std::int64_t kK = 100;
  ThreadTeam one(1);
  const auto make_static = [&](std::int64_t n, float scale) {
    const std::vector<float> scales(static_cast<std::size_t>(n), 0.01F);
    const std::vector<std::int32_t> start(static_cast<std::size_t>(n), 5);
    Int8Layer layer;
    layer.read_row = [](std::int64_t row, std::int8_t* out) {
      for (std::int64_t i = 0; i < kK; ++i) out[i] = static_cast<std::int8_t>((row * 7 + i * 13) % 200 - 100);
    };
    layer.scale = scales;
    layer.start = start;
    layer.input = StaticInput{scale, 3.0F, 0};
    return ops().pack_int8(one, n, kK, layer);
  };
  std::vector<std::unique_ptr<PackedLinear>> experts;
  experts.push_back(make_static(kN, 0.02F));
  std::vector<std::unique_ptr<PackedLinear>> parts;
  parts.push_back(make_static(30, 0.05F));
  parts.push_back(pack(ops(), WeightType::kBf16, kN - 30, kK, 4));
  experts.push_back(ops().join(std::move(parts)));
  experts.push_back(pack(ops(), WeightType::kInt8, kN, kK, 5));
  experts.push_back(make_static(kN, 0.01F));
  for (const std::vector<std::int64_t>& counts :
       std::vector<std::vector<std::int64_t>>{{1, 1, 1, 1}, {0, 5, 0, 0}, {300, 20, 0, 7}, {0, 0, 3, 2}}) {
    const std::int64_t rows = counts[0] + counts[1] + counts[2] + counts[3];
    const auto x = random_floats(static_cast<std::size_t>(rows * kK), 9);
    std::vector<float> expected(static_cast<std::size_t>(rows * kN));
    std::vector<const float*> inputs;
    std::vector<RowGroup> groups;
    std::int64_t row = 0;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      groups.push_back({experts[i].get(), counts[i]});
      ops().linear(one, *experts[i], x.data() + row * kK, kK, counts[i], expected.data() + row * kN, kN,
                   Epilogue::kStore);
      for (std::int64_t j = 0; j < counts[i]; ++j) inputs.push_back(x.data() + row++ * kK);
    }
    ThreadTeam team(3);
    std::vector<float> y(expected.size());
    ops().grouped_linear(team, groups, inputs.data(), y.data(), kN);
    EXPECT_TRUE(bit_equal(y, expected)) << rows << " rows";
  }
}

TEST_P(ExpertsTest, ChoiceIsTheSoftmaxOverAll) {
  for (const std::int32_t experts : {1, 6, 128}) {
    for (const std::int32_t top_k : {1, 2, 6, 8}) {
      if (top_k > experts) continue;
      const std::int64_t rows = 50;
      const auto logits = random_floats(static_cast<std::size_t>(rows * experts), 4, 3.0F);
      for (const bool normalise : {false, true}) {
        for (const int threads : {1, 3}) {
          ThreadTeam team(threads);
          std::vector<std::int32_t> chosen(static_cast<std::size_t>(rows * top_k));
          std::vector<float> weights(chosen.size());
          ops().choose_experts(team, logits.data(), rows, experts, top_k, normalise, chosen.data(), weights.data());
          for (std::int64_t row = 0; row < rows; ++row) {
            const float* in = logits.data() + row * experts;
            double total = 0;
            for (std::int32_t i = 0; i < experts; ++i) total += std::exp(static_cast<double>(in[i]));
            std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
            for (std::int32_t i = 0; i < experts; ++i) order[static_cast<std::size_t>(i)] = i;
            std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return in[a] > in[b]; });
            order.resize(static_cast<std::size_t>(top_k));
            std::sort(order.begin(), order.end());
            double kept = 0;
            for (const std::int32_t i : order) kept += std::exp(static_cast<double>(in[i])) / total;
            for (std::size_t j = 0; j < order.size(); ++j) {
              const auto at = static_cast<std::size_t>(row * top_k) + j;
              ASSERT_EQ(chosen[at], order[j]);
              const double p = std::exp(static_cast<double>(in[order[j]])) / total;
              ASSERT_NEAR(weights[at], normalise ? p / kept : p, 1e-6);
            }
          }
        }
      }
    }
  }
}

TEST_P(ExpertsTest, TiesGoToTheLowerExpertAndBrokenRowsShow) {
  ThreadTeam team(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {1,     1,        1,     1, 1,  //
                                     0,     2,        2,     3, 2,  //
                                     0,     0,        5,     0, 5,  //
                                     0,     nan,      1,     2, 3,  //
                                     0,     infinity, 1,     2, 3,  //
                                     -1000, -1000,    -1000, 0, 1000};
  std::vector<std::int32_t> chosen(12);
  std::vector<float> weights(12);
  ops().choose_experts(team, logits.data(), 6, 5, 2, true, chosen.data(), weights.data());
  EXPECT_EQ(std::vector<std::int32_t>(chosen.begin(), chosen.begin() + 6),
            (std::vector<std::int32_t>{0, 1, 1, 3, 2, 4}));
  EXPECT_EQ(weights[0], 0.5F);
  EXPECT_EQ(weights[1], 0.5F);
  for (std::size_t i = 6; i < 10; ++i) {
    EXPECT_TRUE(std::isnan(weights[i]));
    EXPECT_TRUE(chosen[i] >= 0 && chosen[i] < 5);
  }
  EXPECT_NE(chosen[6], chosen[7]);
  EXPECT_EQ(chosen[11], 4);
  EXPECT_EQ(weights[11], 1.0F);
}

TEST_P(ExpertsTest, WeightedSumsGoInOrder) {
  for (const std::int64_t cols : {1, 40, 513, 2048}) {
    const std::int64_t rows = 20;
    const std::int32_t count = 3;
    const auto values = random_floats(static_cast<std::size_t>(rows * count * cols), 6);
    const auto weights = random_floats(static_cast<std::size_t>(rows * count), 7);
    std::vector<const float*> parts;
    for (std::int64_t i = 0; i < rows * count; ++i)
      parts.push_back(values.data() + (i * 13 + 1) % (rows * count) * cols);
    const auto before = random_floats(static_cast<std::size_t>(rows * cols), 8);
    auto expected = before;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < cols; ++i) {
        float sum = 0.0F;
        for (std::int64_t j = 0; j < count; ++j) {
          const auto at = static_cast<std::size_t>(row * count + j);
          const float product = weights[at] * parts[at][i];
          sum = sum + product;
        }
        expected[static_cast<std::size_t>(row * cols + i)] += sum;
      }
    }
    for (const int threads : {1, 4}) {
      ThreadTeam team(threads);
      auto y = before;
      ops().add_weighted(team, parts.data(), weights.data(), count, rows, cols, y.data());
      EXPECT_TRUE(bit_equal(y, expected)) << cols;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ExpertsTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

}  // namespace
}  // namespace tandem::kernels

// SPDX-License-Identifier: Apache-2.0
// Around the experts of a mixture: which ones a token takes, and the weighted sum of what they say. Their linear layers
// are grouped_linear() in cpu_ops.cc.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/partition.h"

namespace tandem::kernels::cpu {
namespace {

struct Choice {
  float probability;
  std::int32_t expert;
};

/// Softmax over all, not over the chosen: without normalisation the weights of a token sum to less than 1.
void softmax(const float* logits, std::int32_t count, float* probabilities) {
  float most = logits[0];
  for (std::int32_t i = 1; i < count; ++i) most = std::max(most, logits[i]);
  float sum = 0.0F;
  for (std::int32_t i = 0; i < count; ++i) {
    probabilities[i] = std::exp(logits[i] - most);
    sum += probabilities[i];
  }
  for (std::int32_t i = 0; i < count; ++i) probabilities[i] /= sum;
}

/// The top_k of them, largest first. Only a strictly larger one moves another down: ties go to the lower expert, and a
/// NaN, which is larger than nothing, to the first experts.
void take_largest(const float* probabilities, std::int32_t count, std::int32_t top_k, Choice* best) {
  std::int32_t taken = 0;
  for (std::int32_t expert = 0; expert < count; ++expert) {
    const float probability = probabilities[expert];
    if (taken == top_k && !(probability > best[top_k - 1].probability)) continue;
    std::int32_t place = taken < top_k ? taken++ : top_k - 1;
    for (; place > 0 && probability > best[place - 1].probability; --place) best[place] = best[place - 1];
    best[place] = {probability, expert};
  }
}

}  // namespace

void CpuOps::choose_experts(ThreadTeam& team, const float* logits, std::int64_t rows, std::int32_t num_experts,
                            std::int32_t top_k, bool normalise, std::int32_t* experts, float* weights) const {
  // exp makes an element dearer than those of other row operations.
  for_rows(team, rows, std::int64_t{8} * num_experts, [&](std::int64_t begin, std::int64_t end) {
    // Kept from call to call, so that steady decoding allocates nothing.
    thread_local std::vector<float> probabilities;
    thread_local std::vector<Choice> best;
    probabilities.resize(static_cast<std::size_t>(num_experts));
    best.resize(static_cast<std::size_t>(top_k));
    for (std::int64_t row = begin; row < end; ++row) {
      softmax(logits + row * num_experts, num_experts, probabilities.data());
      take_largest(probabilities.data(), num_experts, top_k, best.data());
      float sum = 0.0F;
      for (const Choice& choice : best) sum += choice.probability;
      std::sort(best.begin(), best.end(), [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
      for (std::int64_t j = 0; j < top_k; ++j) {
        const Choice& choice = best[static_cast<std::size_t>(j)];
        experts[row * top_k + j] = choice.expert;
        weights[row * top_k + j] = normalise ? choice.probability / sum : choice.probability;
      }
    }
  });
}

void CpuOps::add_weighted(ThreadTeam& team, const float* const* parts, const float* weights, std::int32_t count,
                          std::int64_t rows, std::int64_t cols, float* y) const {
  // A stretch of columns at a time, whose sums stay in the first-level cache while the parts go by.
  constexpr std::int64_t kStretch = 512;
  for_rows(team, rows, cols * count, [&](std::int64_t begin, std::int64_t end) {
    float sums[kStretch];
    for (std::int64_t row = begin; row < end; ++row) {
      const float* const* sources = parts + row * count;
      const float* factors = weights + row * count;
      for (std::int64_t first = 0; first < cols; first += kStretch) {
        const std::int64_t width = std::min(kStretch, cols - first);
        std::fill_n(sums, width, 0.0F);
        for (std::int32_t j = 0; j < count; ++j) {
          const float* source = sources[j] + first;
          const float factor = factors[j];
          for (std::int64_t i = 0; i < width; ++i) sums[i] += factor * source[i];
        }
        float* out = y + row * cols + first;
        for (std::int64_t i = 0; i < width; ++i) out[i] += sums[i];
      }
    }
  });
}

}  // namespace tandem::kernels::cpu

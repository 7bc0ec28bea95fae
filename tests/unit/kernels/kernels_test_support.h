// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: the implementations this CPU has, random numbers from a counter, comparisons.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tandem::kernels {

inline std::vector<Isa> isas_of_this_cpu() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (ops_for(isa)) isas.push_back(isa);
  }
  return isas;
}

inline const Ops& ops_of(Isa isa) { return *ops_for(isa).value(); }

/// Uniform in [-1, 1), the same on every run.
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed, float scale = 1.0F) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t z = seed * 0x2545F4914F6CDD1DULL + (i + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    values[i] = (static_cast<float>(z >> 40) * 0x1p-23F - 1.0F) * scale;
  }
  return values;
}

inline ::testing::AssertionResult bit_equal(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// |a - b| <= tolerance * scale of the expected values (their largest magnitude).
inline ::testing::AssertionResult near(const std::vector<float>& found, const std::vector<float>& expected,
                                       double tolerance) {
  if (found.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  double scale = 1e-6;
  for (const float value : expected) scale = std::fmax(scale, std::fabs(value));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = std::fabs(static_cast<double>(found[i]) - expected[i]);
    if (!(error <= tolerance * scale)) {
      return ::testing::AssertionFailure() << "element " << i << ": found " << found[i] << ", expected " << expected[i]
                                           << ", tolerance " << tolerance * scale;
    }
  }
  return ::testing::AssertionSuccess();
}

/// A sequence of floats that a kernel must not read into its result.
inline float poison() { return std::bit_cast<float>(0x7fc12345U); }

class EveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  const Ops& ops() const { return ops_of(GetParam()); }
};

inline std::string isa_test_name(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

}  // namespace tandem::kernels

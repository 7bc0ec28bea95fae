// SPDX-License-Identifier: Apache-2.0
// Conversions of KV to the letter, against values worked out by hand or by plain arithmetic.
#include "kv/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float16.h"

namespace tandem::kv {
namespace {

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> convert(ElementType from, const std::vector<std::byte>& source, ElementType to,
                               std::size_t count, std::int32_t dim) {
  EXPECT_EQ(source.size(), count * vector_bytes(from, dim));
  std::vector<std::byte> out(count * vector_bytes(to, dim) + 1, std::byte{0x5a});
  convert_vectors(from, source.data(), to, out.data(), count, dim);
  EXPECT_EQ(out.back(), std::byte{0x5a}) << "one byte too far";
  out.pop_back();
  return out;
}

/// Values and scale of an int8 vector.
std::vector<std::byte> int8_vector(const std::vector<std::int8_t>& values, float scale) {
  std::vector<std::byte> bytes = bytes_of(values);
  const std::vector<std::byte> tail = bytes_of(std::vector<float>{scale});
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

TEST(ConvertTest, Bf16ToF32IsExactAndBackIsTheSame) {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = to_float(bf16_t{static_cast<std::uint16_t>(bits)});
    if (!std::isnan(value)) all.push_back(static_cast<std::uint16_t>(bits));
  }
  const auto dim = static_cast<std::int32_t>(all.size() / 2);
  const std::vector<std::byte> source = bytes_of(all);
  const std::vector<std::byte> wide = convert(ElementType::kBf16, source, ElementType::kF32, 2, dim);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, wide.data() + 4 * i, 4);
    ASSERT_EQ(bits, static_cast<std::uint32_t>(all[i]) << 16);
  }
  EXPECT_EQ(convert(ElementType::kF32, wide, ElementType::kBf16, 2, dim), source);
}

TEST(ConvertTest, F32ToBf16RoundsHalfToEven) {
  const std::vector<float> values = {1.0F, 1.00390625F, 1.01171875F, -1.00390625F, 3.0e-40F, 65504.0F};
  const std::vector<std::uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0xbf80, 0x0003, 0x4780};
  EXPECT_EQ(convert(ElementType::kF32, bytes_of(values), ElementType::kBf16, 2, 3), bytes_of(expected));
}

TEST(ConvertTest, ToInt8IsSymmetricWithOneScaleAVector) {
  // Max 254: the step is 2, so that halves are exact. 1 / 2 and 3 / 2 go to the even neighbour.
  const std::vector<float> values = {254.0F, 1.0F, 3.0F, -5.0F, 0.0F, -0.25F, 0.0F, 0.125F, 0.0625F, 0.25F};
  std::vector<std::byte> expected = int8_vector({127, 0, 2, -2, 0}, 2.0F);
  const std::vector<std::byte> second = int8_vector({-127, 0, 64, 32, 127}, 0.25F / 127.0F);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(convert(ElementType::kF32, bytes_of(values), ElementType::kInt8, 2, 5), expected);
}

TEST(ConvertTest, ZerosAndWhatIsNoNumberGoToInt8AsTheKernelsDoIt) {
  EXPECT_EQ(convert(ElementType::kF32, bytes_of(std::vector<float>{0.0F, -0.0F, 0.0F}), ElementType::kInt8, 1, 3),
            int8_vector({0, 0, 0}, 0.0F));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(convert(ElementType::kF32, bytes_of(std::vector<float>{1.0F, infinity, 2.0F}), ElementType::kInt8, 1, 3),
            int8_vector({0, 0, 0}, std::numeric_limits<float>::quiet_NaN()));
}

TEST(ConvertTest, FromInt8IsValueTimesScale) {
  const std::vector<std::byte> source = int8_vector({-127, 0, 5}, 0.0375F);
  EXPECT_EQ(convert(ElementType::kInt8, source, ElementType::kF32, 1, 3),
            bytes_of(std::vector<float>{-127.0F * 0.0375F, 0.0F, 5.0F * 0.0375F}));
  std::vector<bf16_t> rounded;
  for (const float value : {-127.0F * 0.0375F, 0.0F, 5.0F * 0.0375F}) rounded.push_back(to_bf16(value));
  EXPECT_EQ(convert(ElementType::kInt8, source, ElementType::kBf16, 1, 3), bytes_of(rounded));
}

}  // namespace
}  // namespace tandem::kv

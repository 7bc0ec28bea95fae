// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace tandem::model {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes, std::uint64_t length = ~0ULL) {
  if (length == ~0ULL) length = header.size();
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(length >> (8 * i));
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = static_cast<std::byte>(i);
  return file;
}

std::string error(const std::vector<std::byte>& file) {
  const auto parsed = parse_safetensors(file, "m.safetensors");
  EXPECT_FALSE(parsed.has_value());
  if (parsed) return "";
  EXPECT_THAT(parsed.error().message(), HasSubstr("m.safetensors"));
  return parsed.error().message();
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t": {"dtype": )" + dtype + R"(, "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}";
}

TEST(Safetensors, ReadsTensorsAtAnyOffset) {
  const std::string header = R"({"__metadata__": {"format": "pt"},
      "b": {"dtype": "BF16", "shape": [3], "data_offsets": [1, 7]},
      "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [7, 15]},
      "empty": {"dtype": "F32", "shape": [0], "data_offsets": [7, 7]},
      "i": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}   )";
  const auto file = file_of(header, 15);
  const auto parsed = parse_safetensors(file, "f");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  ASSERT_EQ(parsed->size(), 4U);
  const StoredTensor& b = (*parsed)[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, TensorType::kBf16);
  EXPECT_EQ(b.data, file.data() + 8 + header.size() + 1);
  EXPECT_EQ(b.bytes, 6U);
  EXPECT_EQ((*parsed)[3].type, std::nullopt) << "readable only when nobody needs it";
  EXPECT_EQ((*parsed)[3].type_name, "I8");
}

TEST(Safetensors, HostileLengths) {
  EXPECT_THAT(error(std::vector<std::byte>(7)), HasSubstr("7 bytes"));
  EXPECT_THAT(error(file_of("{}", 0, 3)), HasSubstr("only 2 follow"));
  EXPECT_THAT(error(file_of("{}", 0, 1ULL << 62)), HasSubstr("at most 100000000"));
  EXPECT_THAT(error(file_of("{", 0)), HasSubstr("JSON"));
  EXPECT_THAT(error(file_of("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(error(file_of(std::string(5000, '['), 0)), HasSubstr("JSON"));
}

TEST(Safetensors, HostileEntries) {
  EXPECT_THAT(error(file_of(R"({"t": 1})", 0)), HasSubstr("'t'"));
  EXPECT_THAT(error(file_of(R"({"t": {}})", 0)), HasSubstr("dtype"));
  EXPECT_THAT(error(file_of(one("7", "[1]", "[0, 4]"), 4)), HasSubstr("dtype"));
  EXPECT_THAT(error(file_of(one(R"("F13")", "[1]", "[0, 4]"), 4)), HasSubstr("F13"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1]", "[0]"), 4)), HasSubstr("data_offsets"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[-1]", "[0, 4]"), 4)), HasSubstr("dimension"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1.5]", "[0, 4]"), 4)), HasSubstr("dimension"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1]", "[0, 4]"), 3)), HasSubstr("has 3"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1]", "[4, 0]"), 8)), HasSubstr("4 to 0"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1]", "[-4, 0]"), 8)), HasSubstr("data_offsets"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1]", "[0, 18446744073709551615]"), 8)), HasSubstr("data_offsets"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[3]", "[0, 8]"), 8)), HasSubstr("need 12"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[4294967296, 4294967296]", "[0, 0]"), 8)), HasSubstr("too large"));
  EXPECT_THAT(error(file_of(one(R"("F32")", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), 8)), HasSubstr("9 dimensions"));
}

TEST(Safetensors, OverlapIsRefused) {
  const std::string header = R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                 "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})";
  EXPECT_THAT(error(file_of(header, 8)), HasSubstr("overlap"));
}

}  // namespace
}  // namespace tandem::model

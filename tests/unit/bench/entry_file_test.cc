// SPDX-License-Identifier: Apache-2.0
#include "bench/entry_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The elements of an array's text that comes in pieces of `size` bytes.
Result<std::vector<std::string>> elements(std::string_view text, std::size_t size) {
  ArrayScanner scanner;
  std::vector<ArrayScanner::Extent> found;
  for (std::size_t i = 0; i < text.size(); i += size) TANDEM_TRY(scanner.feed(text.substr(i, size), found));
  TANDEM_TRY(scanner.finish());
  std::vector<std::string> result;
  for (const auto& [begin, end] : found) result.emplace_back(text.substr(begin, end - begin));
  return result;
}

TEST(ArrayScanner, FindsElementsInAnyPieces) {
  const std::string_view text = " [ {\"a\": [1, \"]},{\\\"\"]} , 7,\n\"x,\\\\\" ,[[]] ]\n";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    const auto found = elements(text, size);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_THAT(*found, ElementsAre("{\"a\": [1, \"]},{\\\"\"]}", "7", "\"x,\\\\\"", "[[]]"));
  }
  EXPECT_TRUE(elements("[]", 1)->empty());
}

TEST(ArrayScanner, RefusesWhatIsNoArray) {
  EXPECT_THAT(elements("{}", 9).error().message(), HasSubstr("expected a JSON array"));
  EXPECT_THAT(elements("[1, 2", 9).error().message(), HasSubstr("not closed"));
  EXPECT_THAT(elements("", 9).error().message(), HasSubstr("not closed"));
  EXPECT_THAT(elements("[1] [2]", 9).error().message(), HasSubstr("follows the array"));
  EXPECT_THAT(elements("[}]", 9).error().message(), HasSubstr("closes nothing"));
}

class EntryFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_ = testing::TempDir() + "tandem_entries.json";
};

TEST_F(EntryFiles, ArrayIsReadInAnyOrder) {
  auto file = EntryFile::open(write("[{\"a\": 1},\n {\"a\": 2}, {broken}]"), EntryFile::Form::kArray);
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_EQ(file->size(), 3u);
  EXPECT_EQ(file->read(1)->at("a"), 2);
  EXPECT_EQ(file->read(0)->at("a"), 1);
  const auto broken = file->read(2);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message(), HasSubstr("entry 3"));
}

TEST_F(EntryFiles, LinesWithAndWithoutAnEnd) {
  auto file = EntryFile::open(write("{\"a\": 1}\r\n\n  \n{\"a\": 2}"), EntryFile::Form::kLines);
  ASSERT_TRUE(file);
  ASSERT_EQ(file->size(), 2u);
  EXPECT_EQ(file->read(0)->at("a"), 1);
  EXPECT_EQ(file->read(1)->at("a"), 2);
}

TEST_F(EntryFiles, ErrorsNameTheFile) {
  EXPECT_THAT(EntryFile::open("/nowhere/x.json", EntryFile::Form::kArray).error().message(),
              HasSubstr("/nowhere/x.json"));
  EXPECT_THAT(EntryFile::open(testing::TempDir(), EntryFile::Form::kArray).error().message(),
              HasSubstr("no such file"));
  EXPECT_THAT(EntryFile::open(write("\n"), EntryFile::Form::kLines).error().message(), HasSubstr("no entries"));
  EXPECT_THAT(EntryFile::open(write("[]"), EntryFile::Form::kArray).error().message(), HasSubstr(path_));
}

}  // namespace
}  // namespace tandem::bench

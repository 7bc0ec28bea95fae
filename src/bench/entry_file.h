// SPDX-License-Identifier: Apache-2.0
// The entries of a dataset's file, read one at a time: a JSON array of any size, or JSON lines. Only where each entry
// lies is kept in memory.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem::bench {

/// Finds the elements of a JSON array in pieces of its text. Only brackets and strings are looked at; what an element
/// is, its parser decides.
class ArrayScanner {
 public:
  struct Extent {
    std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the text
  };

  /// Extents of elements that ended in this piece are appended.
  Result<void> feed(std::string_view piece, std::vector<Extent>& found);
  /// The text is over. An error if the array is not.
  Result<void> finish() const;

 private:
  enum class Where : std::uint8_t { kBefore, kInside, kAfter };
  void end_element(std::vector<Extent>& found);

  Where where_ = Where::kBefore;
  bool in_string_ = false, escaped_ = false, in_element_ = false;
  std::uint64_t depth_ = 0;  ///< of brackets within the element
  std::uint64_t at_ = 0;     ///< bytes so far
  std::uint64_t begin_ = 0;  ///< of the element
  std::uint64_t last_ = 0;   ///< past the element's last byte that is not blank
};

class EntryFile {
 public:
  enum class Form : std::uint8_t { kArray, kLines };

  /// Scans the file once. Errors name it.
  static Result<EntryFile> open(const std::string& path, Form form);

  std::size_t size() const { return extents_.size(); }
  /// Errors name the file and the entry (counted from 1).
  Result<boost::json::value> read(std::size_t index);

 private:
  EntryFile(std::string path, std::ifstream file) : path_(std::move(path)), file_(std::move(file)) {}
  Result<void> scan(Form form);

  std::string path_;
  std::ifstream file_;
  std::vector<ArrayScanner::Extent> extents_;
};

}  // namespace tandem::bench

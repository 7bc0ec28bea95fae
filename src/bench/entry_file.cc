// SPDX-License-Identifier: Apache-2.0
#include "bench/entry_file.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>

#include "base/json.h"

namespace tandem::bench {
namespace {

constexpr std::size_t kPieceBytes = 256U << 10;
constexpr std::uint64_t kMostEntryBytes = 16U << 20;
constexpr std::size_t kMostEntries = 50'000'000;

bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// One extent for each line that is not blank.
class LineScanner {
 public:
  void feed(std::string_view piece, std::vector<ArrayScanner::Extent>& found) {
    for (const char c : piece) {
      ++at_;
      if (c == '\n') {
        end_line(found);
        begin_ = at_;
      } else if (!blank(c)) {
        any_ = true;
      }
    }
  }
  void end_line(std::vector<ArrayScanner::Extent>& found) {
    if (any_) found.push_back({begin_, at_});
    any_ = false;
  }

 private:
  std::uint64_t at_ = 0, begin_ = 0;
  bool any_ = false;
};

}  // namespace

void ArrayScanner::end_element(std::vector<Extent>& found) {
  if (in_element_) found.push_back({begin_, last_});
  in_element_ = false;
}

Result<void> ArrayScanner::feed(std::string_view piece, std::vector<Extent>& found) {
  for (const char c : piece) {
    const std::uint64_t here = at_++;
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      last_ = at_;
      continue;
    }
    if (blank(c)) continue;
    if (where_ == Where::kBefore) {
      if (c != '[') return Status(Code::kInvalidArgument, fmt::format("expected a JSON array, found '{}' first", c));
      where_ = Where::kInside;
      continue;
    }
    if (where_ == Where::kAfter)
      return Status(Code::kInvalidArgument, fmt::format("something follows the array at byte {}", here));
    if (depth_ == 0 && (c == ',' || c == ']')) {
      end_element(found);
      if (c == ']') where_ = Where::kAfter;
      continue;
    }
    if (!in_element_) {
      in_element_ = true;
      begin_ = here;
    }
    last_ = at_;
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') {
      if (depth_ == 0) return Status(Code::kInvalidArgument, fmt::format("a bracket closes nothing at byte {}", here));
      --depth_;
    }
  }
  return {};
}

Result<void> ArrayScanner::finish() const {
  if (where_ == Where::kAfter) return {};
  return Status(Code::kInvalidArgument, fmt::format("the array is not closed at the end, byte {}", at_));
}

Result<EntryFile> EntryFile::open(const std::string& path, Form form) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return Status(Code::kNotFound, fmt::format("dataset {}: there is no such file", path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::kNotFound, fmt::format("dataset {}: cannot be opened", path));
  EntryFile file(path, std::move(in));
  if (auto scanned = file.scan(form); !scanned) return scanned.error().context("dataset " + path);
  return file;
}

Result<void> EntryFile::scan(Form form) {
  ArrayScanner array;
  LineScanner lines;
  std::string piece(kPieceBytes, '\0');
  while (file_.read(piece.data(), static_cast<std::streamsize>(piece.size())), file_.gcount() > 0) {
    const std::string_view part(piece.data(), static_cast<std::size_t>(file_.gcount()));
    if (form == Form::kLines) {
      lines.feed(part, extents_);
    } else {
      TANDEM_TRY(array.feed(part, extents_));
    }
    if (extents_.size() > kMostEntries)
      return Status(Code::kInvalidArgument, fmt::format("more than {} entries", kMostEntries));
  }
  if (form == Form::kLines) {
    lines.end_line(extents_);
  } else {
    TANDEM_TRY(array.finish());
  }
  if (extents_.empty()) return Status(Code::kInvalidArgument, "it has no entries");
  return {};
}

Result<boost::json::value> EntryFile::read(std::size_t index) {
  TANDEM_ASSERT(index < extents_.size(), "the index is below size()");
  const auto [begin, end] = extents_[index];
  const std::string where = fmt::format("dataset {}, entry {}", path_, index + 1);
  if (end - begin > kMostEntryBytes)
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: {} bytes, more than {}", where, end - begin, kMostEntryBytes));
  std::string text(end - begin, '\0');
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(begin));
  if (!file_.read(text.data(), static_cast<std::streamsize>(text.size())))
    return Status(Code::kDataLoss, where + ": cannot be read; was the file changed?");
  auto value = parse_json(text);
  if (!value) return value.error().context(where);
  return value;
}

}  // namespace tandem::bench

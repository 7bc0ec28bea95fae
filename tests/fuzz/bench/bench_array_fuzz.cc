// SPDX-License-Identifier: Apache-2.0
// Any bytes as a dataset's file: what is found does not depend on the pieces, lies within the text, in order, and is
// what a JSON parser finds where the text is a JSON array. Numbers are not compared: the last bits of a long one depend
// on what stands behind it, as the parser reads several digits at a time.
#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>

#include "bench/entry_file.h"

namespace {

using Extents = std::vector<tandem::bench::ArrayScanner::Extent>;

bool scan(std::string_view text, std::size_t piece, Extents& found) {
  tandem::bench::ArrayScanner scanner;
  for (std::size_t at = 0; at < text.size(); at += piece)
    if (!scanner.feed(text.substr(at, piece), found)) return false;
  return static_cast<bool>(scanner.finish());
}

bool alike(const boost::json::value& a, const boost::json::value& b) {
  if (a.is_string()) return a == b;
  if (a.is_object()) return b.is_object() && a.get_object().size() == b.get_object().size();
  if (a.is_array()) return b.is_array() && a.get_array().size() == b.get_array().size();
  return a.is_number() == b.is_number();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Extents whole, pieces;
  const bool good = scan(text, size + 1, whole);
  if (scan(text, 3, pieces) != good || pieces.size() != whole.size()) std::abort();
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].begin != pieces[i].begin || whole[i].end != pieces[i].end) std::abort();
    if (whole[i].begin < last || whole[i].end <= whole[i].begin || whole[i].end > size) std::abort();
    last = whole[i].end;
  }
  boost::system::error_code error;
  const auto value = boost::json::parse(boost::json::string_view(text.data(), text.size()), error);
  if (error || !value.is_array()) return 0;
  if (!good || value.get_array().size() != whole.size()) std::abort();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto element = text.substr(whole[i].begin, whole[i].end - whole[i].begin);
    const auto parsed = boost::json::parse(boost::json::string_view(element.data(), element.size()), error);
    if (error || !alike(value.get_array()[i], parsed)) std::abort();
  }
  return 0;
}

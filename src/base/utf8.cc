// SPDX-License-Identifier: Apache-2.0
// "Maximal ill-formed subsequence" is the Unicode
// standard's: the longest prefix of some valid character, or one byte (Unicode 15, section 3.9, table 3-7).
#include "base/utf8.h"

#include <cstdint>

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

struct Step {
  std::size_t length;  ///< bytes taken, at least 1
  bool valid;          ///< they are one character
  bool incomplete;     ///< they end with the text and more bytes could still make them a character
};

/// Looks at one character, or one maximal ill-formed subsequence, at the start of a text that is not empty.
Step step(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<std::uint8_t>(text[index]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  std::size_t length = 0;
  std::uint8_t low = 0x80;  // bounds of the second byte; overlong forms, surrogates and > U+10FFFF fall outside
  std::uint8_t high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {1, false, false};
  }
  for (std::size_t index = 1; index < length; ++index) {
    if (index == text.size()) return {index, false, true};
    if (byte(index) < low || byte(index) > high) return {index, false, false};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true, false};
}

}  // namespace

std::size_t complete_utf8_prefix(std::string_view bytes) {
  // A character has at most four bytes, so only a lead byte among the last three can be incomplete.
  const std::size_t first = bytes.size() > 3 ? bytes.size() - 3 : 0;
  for (std::size_t at = bytes.size(); at-- > first;) {
    const auto byte = static_cast<std::uint8_t>(bytes[at]);
    if ((byte & 0xc0U) == 0x80U) continue;
    return step(bytes.substr(at)).incomplete ? at : bytes.size();
  }
  return bytes.size();
}

std::string replace_ill_formed_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Step next = step(bytes);
    text += next.valid ? bytes.substr(0, next.length) : kReplacement;
    bytes.remove_prefix(next.length);
  }
  return text;
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Step next = step(bytes);
    if (!next.valid) return false;
    bytes.remove_prefix(next.length);
  }
  return true;
}

}  // namespace tandem

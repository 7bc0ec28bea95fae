// SPDX-License-Identifier: Apache-2.0
// Bytes that may be UTF-8 or not: what people and programs sent us, or a text cut off somewhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

/// The length of the longest prefix of `bytes` that is whole characters, valid or not (an incomplete tail is excluded).
std::size_t complete_utf8_prefix(std::string_view bytes);
/// Replaces each maximal ill-formed subsequence by U+FFFD.
std::string replace_ill_formed_utf8(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);

}  // namespace tandem

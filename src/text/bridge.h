// SPDX-License-Identifier: Apache-2.0
// Private to text: the generated header of the Rust crate, and its errors as Status.
#pragma once

#include <exception>
#include <string_view>

#include "base/status.h"
#include "tandem_text_crate/src/lib.rs.h"

namespace tandem::text {

inline rust::Slice<const std::uint8_t> as_slice(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// The crate puts one letter for the kind before the message (src/lib.rs, Failure).
inline Status bridge_error(const std::exception& error) {
  const std::string_view what = error.what();
  const char kind = what.empty() ? 'X' : what.front();
  const std::string message(what.empty() ? what : what.substr(1));
  if (kind == 'I') return {Code::kInvalidArgument, message};
  if (kind == 'U') return {Code::kUnsupported, message};
  return {Code::kInternal, message};
}

}  // namespace tandem::text

// SPDX-License-Identifier: Apache-2.0
// Element types of KV memory: their sizes and the names that logs and handshakes show.
#include "kv/layout.h"

#include "base/status.h"

namespace tandem::kv {

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return 2;
    case ElementType::kF32:
      return 4;
  }
  TANDEM_ASSERT(false, "unknown KV element type");
  return 0;
}

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return "bfloat16";
    case ElementType::kF32:
      return "float32";
  }
  TANDEM_ASSERT(false, "unknown KV element type");
  return "";
}

}  // namespace tandem::kv

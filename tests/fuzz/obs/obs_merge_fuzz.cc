// SPDX-License-Identifier: Apache-2.0
// Metrics of other processes: any text. What comes out of a merge is a fixed point: it merges into itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "obs/merge.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tandem::obs::Format;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const Format format : {Format::kText, Format::kOpenMetrics}) {
    const std::vector<std::string> texts{text, text};
    const std::string merged = tandem::obs::merge_expositions(texts, format, "hidden:");
    const std::vector<std::string> again{merged};
    if (tandem::obs::merge_expositions(again, format) != merged) std::abort();
    if (tandem::obs::merge_expositions(again, format, "hidden:") != merged) std::abort();
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: an error or tensors inside it, never a crash. Input that starts with '{' is a header
// up to the first zero byte, then data; its length is put before it. Other input is the file itself.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tandem::model;
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.starts_with('{')) {
    const std::uint64_t length = std::min(file.find('\0'), file.size());
    file.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  }
  const auto tensors = parse_safetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()}, "fuzz");
  if (!tensors) return 0;
  for (const StoredTensor& tensor : *tensors) {
    if (!tensor.type || tensor.shape.size() != 2 || tensor.shape[0] == 0) continue;
    TensorView view;
    view.type = *tensor.type;
    view.rows = tensor.shape[0];
    view.cols = tensor.shape[1];
    view.data = tensor.data;
    view.bytes = tensor.bytes;
    std::vector<float> row(static_cast<std::size_t>(view.cols));
    view.read_row(view.rows - 1, row.data());
  }
  return 0;
}

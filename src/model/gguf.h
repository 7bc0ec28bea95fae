// SPDX-License-Identifier: Apache-2.0
// The container format GGUF, versions 2 and 3: metadata and tensor infos, every length checked against the file before
// it is believed. What the metadata mean for a model is gguf_checkpoint.cc's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::model {

/// Integers of all widths are widened; bool stays bool. Arrays hold one kind; arrays of arrays are refused.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::uint32_t type_id = 0;
  std::optional<TensorType> type;   ///< nullopt: not one that we read
  std::vector<std::int64_t> shape;  ///< row-major (GGUF's own order reversed)
  const std::byte* data = nullptr;
  std::size_t bytes = 0;  ///< 0 for types that we do not read
};

struct GgufFile {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;
};

/// The tensors' data point into `file`. Errors name `path`, the key or tensor, what was found and expected.
Result<GgufFile> parse_gguf(std::span<const std::byte> file, const std::string& path);

/// "Q4_K", or "type 10 (Q2_K)" for those that are not read.
std::string gguf_type_name(std::uint32_t type_id);
std::optional<TensorType> gguf_tensor_type(std::uint32_t type_id);
std::uint32_t gguf_type_id(TensorType type);

}  // namespace tandem::model

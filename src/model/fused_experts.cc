// SPDX-License-Identifier: Apache-2.0
#include "model/fused_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <utility>

namespace tandem::model {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";
constexpr std::string_view kWeight = ".weight";

// One part of each expert's rows.
struct Part {
  std::string_view name;
  std::int64_t rows;
};

std::vector<Part> parts_of(std::string_view name, std::int64_t rows) {
  if (name == "gate_up_proj") return {{"gate_proj", rows / 2}, {"up_proj", rows / 2}};
  for (const std::string_view plain : {"gate_proj", "up_proj", "down_proj"})
    if (name == plain) return {{plain, rows}};
  return {};
}

}  // namespace

Result<std::vector<StoredTensor>> split_experts(StoredTensor tensor, const ModelConfig& config) {
  const std::size_t at = tensor.name.find(kExperts);
  std::vector<Part> parts;
  if (config.num_experts > 0 && at != std::string::npos && tensor.shape.size() == 3) {
    std::string_view part = std::string_view(tensor.name).substr(at + kExperts.size());
    if (part.ends_with(kWeight)) part.remove_suffix(kWeight.size());
    parts = parts_of(part, tensor.shape[1]);
  }
  if (parts.empty()) return std::vector<StoredTensor>{std::move(tensor)};

  const std::int64_t experts = tensor.shape[0];
  const std::int64_t rows = tensor.shape[1];
  const auto whole_rows = static_cast<std::size_t>(config.num_experts) * static_cast<std::size_t>(rows);
  if (experts != config.num_experts || rows < 1 || rows % static_cast<std::int64_t>(parts.size()) != 0 ||
      tensor.bytes % whole_rows != 0)
    return Status(Code::kInvalidArgument,
                  fmt::format("tensor '{}' has shape [{}], expected that of {} experts by the config",
                              tensor.stored_name, fmt::join(tensor.shape, ", "), config.num_experts));
  const std::size_t row_bytes = tensor.bytes / whole_rows;
  std::vector<StoredTensor> split;
  const std::byte* data = tensor.data;
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (const Part& part : parts) {
      StoredTensor& one = split.emplace_back(tensor);
      one.name = fmt::format("{}{}{}.{}{}", tensor.name.substr(0, at), kExperts, expert, part.name, kWeight);
      one.shape = {part.rows, tensor.shape[2]};
      one.data = data;
      one.bytes = static_cast<std::size_t>(part.rows) * row_bytes;
      data += one.bytes;
    }
  return split;
}

}  // namespace tandem::model

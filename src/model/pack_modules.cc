// SPDX-License-Identifier: Apache-2.0
#include "model/pack_modules.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/status.h"

namespace tandem::model {
namespace {

using kernels::PackedLinear;
using Parts = std::span<const ModulePart>;

std::int64_t num_rows(Parts parts) {
  std::int64_t rows = 0;
  for (const ModulePart& part : parts) rows += part.module.weight.rows;
  return rows;
}

/// The part that has a row, and which of its rows it is.
std::pair<const ModulePart*, std::int64_t> find_row(Parts parts, std::int64_t row) {
  for (const ModulePart& part : parts) {
    if (row < part.module.weight.rows) return {&part, row};
    row -= part.module.weight.rows;
  }
  TANDEM_ASSERT(false, "a row past the last part was asked for");
  return {nullptr, 0};
}

/// The values of all parts one after another; zeros where a part has none. Empty if no part has any.
template <class T, class Get>
std::vector<T> joined(Parts parts, Get get) {
  std::vector<T> all(static_cast<std::size_t>(num_rows(parts)), T{});
  bool any = false;
  auto out = all.begin();
  for (const ModulePart& part : parts) {
    const std::vector<T>& values = get(part);
    any = any || !values.empty();
    std::copy(values.begin(), values.end(), out);
    out += part.module.weight.rows;
  }
  return any ? all : std::vector<T>();
}

std::unique_ptr<PackedLinear> pack_int8(const kernels::Ops& ops, kernels::ThreadTeam& team, Parts parts) {
  const std::int64_t cols = parts.front().module.weight.cols;
  const auto scale = joined<float>(parts, [](const ModulePart& part) -> auto& { return part.module.int8->scale; });
  const auto start =
      joined<std::int32_t>(parts, [](const ModulePart& part) -> auto& { return part.module.int8->start; });
  const auto bias = joined<float>(parts, [](const ModulePart& part) -> auto& { return part.bias; });
  kernels::Int8Layer layer;
  layer.read_row = [&](std::int64_t row, std::int8_t* out) {
    const auto [part, index] = find_row(parts, row);
    std::memcpy(out, part->module.int8->values + index * cols, static_cast<std::size_t>(cols));
  };
  layer.scale = scale;
  layer.start = start;
  layer.bias = bias;
  layer.input = parts.front().module.int8->input;
  return ops.pack_int8(team, num_rows(parts), cols, layer);
}

std::unique_ptr<PackedLinear> pack_floats(const kernels::Ops& ops, kernels::ThreadTeam& team, kernels::WeightType type,
                                          Parts parts) {
  const auto bias = joined<float>(parts, [](const ModulePart& part) -> auto& { return part.bias; });
  const auto read_row = [&](std::int64_t row, float* out) {
    const auto [part, index] = find_row(parts, row);
    part->module.weight.read_row(index, out);
  };
  return ops.pack_linear(team, type, num_rows(parts), parts.front().module.weight.cols, read_row,
                         bias.empty() ? nullptr : bias.data());
}

bool share_a_matrix(const LinearModule& a, const LinearModule& b) {
  return a.int8.has_value() == b.int8.has_value() && (!a.int8 || a.int8->input == b.int8->input);
}

}  // namespace

std::unique_ptr<PackedLinear> pack_modules(const kernels::Ops& ops, kernels::ThreadTeam& team, kernels::WeightType type,
                                           const std::vector<ModulePart>& parts) {
  std::vector<std::unique_ptr<PackedLinear>> layers;
  for (std::size_t first = 0; first < parts.size();) {
    std::size_t end = first + 1;
    while (end < parts.size() && share_a_matrix(parts[first].module, parts[end].module)) ++end;
    const Parts run = Parts(parts).subspan(first, end - first);
    layers.push_back(run.front().module.int8 ? pack_int8(ops, team, run) : pack_floats(ops, team, type, run));
    first = end;
  }
  return ops.join(std::move(layers));
}

}  // namespace tandem::model

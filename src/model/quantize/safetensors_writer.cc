// SPDX-License-Identifier: Apache-2.0
#include "model/quantize/safetensors_writer.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

namespace tandem::model {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

Status cannot_write(const fs::path& path) {
  return Status(Code::kInternal, fmt::format("cannot write {}: is there room, and may it be written?", path.string()));
}

/// Consecutive tensors, each shard at most `shard_bytes` unless one tensor alone is more.
std::vector<std::span<const OutputTensor>> split(std::span<const OutputTensor> tensors, std::size_t shard_bytes) {
  std::vector<std::span<const OutputTensor>> shards;
  std::size_t first = 0;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > first && bytes + tensors[i].bytes > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  shards.push_back(tensors.subspan(first));
  return shards;
}

}  // namespace

Result<void> write_safetensors_file(const std::string& path, std::span<const OutputTensor> tensors) {
  json::object header{{"__metadata__", {{"format", "pt"}}}};
  std::size_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    const std::size_t end = offset + tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", json::value_from(tensor.shape)}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  const auto start = static_cast<std::size_t>(8) + text.size();
  std::size_t written = 0;
  for (const OutputTensor& tensor : tensors) {
    if (!out) return cannot_write(path);
    TANDEM_TRY(tensor.write(out));
    written += tensor.bytes;
    if (!out) return cannot_write(path);
    TANDEM_ASSERT(static_cast<std::size_t>(out.tellp()) == start + written, "a tensor wrote another number of bytes");
  }
  out.close();
  if (out.fail()) return cannot_write(path);
  return {};
}

Result<void> write_safetensors_folder(const std::string& folder, const std::vector<OutputTensor>& tensors,
                                      std::size_t shard_bytes) {
  const auto shards = split(tensors, shard_bytes);
  if (shards.size() == 1) return write_safetensors_file(folder + "/model.safetensors", tensors);
  json::object weight_map;
  std::size_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const OutputTensor& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      total += tensor.bytes;
    }
    TANDEM_TRY(write_safetensors_file(folder + "/" + name, shards[i]));
  }
  const fs::path path = fs::path(folder) / "model.safetensors.index.json";
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << json::serialize(json::object{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}})
      << "\n";
  out.close();
  if (out.fail()) return cannot_write(path);
  return {};
}

}  // namespace tandem::model

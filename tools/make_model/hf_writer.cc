// SPDX-License-Identifier: Apache-2.0
#include "make_model/hf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <ostream>
#include <vector>

#include "make_model/encode.h"
#include "make_model/file_writer.h"
#include "make_model/shapes.h"
#include "model/quantize/safetensors_writer.h"

namespace tandem::tools {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

using model::TensorType;

std::size_t tensor_bytes(const NamedTensor& tensor, TensorType type) {
  return static_cast<std::size_t>(tensor.view.rows) * row_bytes(type, tensor.view.cols);
}

Result<void> write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors, TensorType type) {
  std::vector<model::OutputTensor> outputs;
  for (const NamedTensor& tensor : tensors) {
    model::OutputTensor& output = outputs.emplace_back();
    output.name = tensor.name;
    output.dtype = model::tensor_type_name(type);
    output.shape = {tensor.view.cols};
    const std::int64_t experts = std::max<std::int64_t>(tensor.experts, 1);
    if (tensor.view.rows > 1) output.shape.insert(output.shape.begin(), tensor.view.rows / experts);
    if (tensor.experts > 0) output.shape.insert(output.shape.begin(), experts);
    output.bytes = tensor_bytes(tensor, type);
    output.write = [view = &tensor.view, type](std::ostream& out) -> Result<void> {
      std::vector<float> values(static_cast<std::size_t>(view->cols));
      std::vector<std::byte> encoded(row_bytes(type, view->cols));
      for (std::int64_t row = 0; row < view->rows; ++row) {
        view->read_row(row, values.data());
        encode_row(type, values.data(), view->cols, encoded.data());
        out.write(reinterpret_cast<const char*>(encoded.data()), static_cast<std::streamsize>(encoded.size()));
      }
      return {};
    };
  }
  return model::write_safetensors_file(path.string(), outputs);
}

Result<void> write_json(const fs::path& path, const json::object& object) {
  FileWriter out(path.string());
  out.text(json::serialize(object));
  out.text("\n");
  return out.close();
}

// Consecutive tensors of about equal bytes a shard; no shard is empty unless there are fewer tensors than shards.
std::vector<std::vector<NamedTensor>> split(std::vector<NamedTensor> tensors, TensorType type, int shards) {
  std::size_t total = 0;
  for (const NamedTensor& tensor : tensors) total += tensor_bytes(tensor, type);
  std::vector<std::vector<NamedTensor>> parts(static_cast<std::size_t>(shards));
  std::size_t before = 0;
  for (NamedTensor& tensor : tensors) {
    const std::size_t bytes = tensor_bytes(tensor, type);
    const std::size_t part = before * static_cast<std::size_t>(shards) / std::max<std::size_t>(total, 1);
    before += bytes;
    parts[part].push_back(std::move(tensor));
  }
  return parts;
}

Result<void> write_shards(const fs::path& folder, std::vector<NamedTensor> tensors, const HfOptions& options) {
  if (options.shards == 1) return write_safetensors(folder / "model.safetensors", tensors, options.type);
  json::object weight_map;
  std::size_t total = 0;
  const auto parts = split(std::move(tensors), options.type, options.shards);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size());
    for (const NamedTensor& tensor : parts[i]) {
      weight_map[tensor.name] = name;
      total += tensor_bytes(tensor, options.type);
    }
    TANDEM_TRY(write_safetensors(folder / name, parts[i], options.type));
  }
  return write_json(folder / "model.safetensors.index.json",
                    {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}});
}

std::string_view torch_name(TensorType type) {
  if (type == TensorType::kF32) return "float32";
  return type == TensorType::kF16 ? "float16" : "bfloat16";
}

}  // namespace

Result<void> write_hf_folder(const model::Checkpoint& checkpoint, const std::string& folder, const HfOptions& options) {
  if (model::tensor_block_values(options.type) != 1)
    return Status(Code::kInvalidArgument,
                  fmt::format("a Hugging Face folder holds bf16, f16 or f32, not {}; write a .gguf file for that",
                              model::tensor_type_name(options.type)));
  if (options.shards < 1 || options.shards > 1000)
    return Status(Code::kInvalidArgument, fmt::format("{} shards were asked for, expected 1..1000", options.shards));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(Code::kInternal, fmt::format("cannot make the folder {}: {}", folder, error.message()));
  TANDEM_ASSIGN(std::vector<NamedTensor> tensors, model_tensors(checkpoint, options.experts));
  tensors.insert(tensors.end(), options.extra.begin(), options.extra.end());
  TANDEM_TRY(write_shards(folder, std::move(tensors), options));
  model::ModelConfig config = checkpoint.config();
  config.dtype = torch_name(options.type);
  return write_json(fs::path(folder) / "config.json", config_json(config));
}

}  // namespace tandem::tools

// SPDX-License-Identifier: Apache-2.0
// Which kind of checkpoint a path holds.
#include "model/checkpoint.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>

#include "model/gguf_checkpoint.h"
#include "model/hf_checkpoint.h"

namespace tandem::model {
namespace fs = std::filesystem;

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path, const boost::json::object& hf_overrides) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return Status(Code::kNotFound,
                  fmt::format("model '{}' does not exist; give a Hugging Face folder or a .gguf file (models are not "
                              "downloaded)",
                              path));
  if (!fs::is_directory(status)) {
    if (fs::path(path).extension() == ".gguf") return open_gguf(path, hf_overrides);
    return Status(
        Code::kInvalidArgument,
        fmt::format("model '{}' is a file but not a .gguf; give a Hugging Face folder or a .gguf file", path));
  }
  if (fs::is_regular_file(fs::path(path) / "config.json", error)) return open_hf_folder(path, hf_overrides);
  std::vector<std::string> gguf_files;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".gguf") gguf_files.push_back(it->path().string());
  if (gguf_files.size() == 1) return open_gguf(gguf_files.front(), hf_overrides);
  return Status(
      Code::kNotFound,
      fmt::format("folder '{}' holds no config.json and {} .gguf files; expected a Hugging Face folder, or exactly "
                  "one .gguf file{}",
                  path, gguf_files.size(), gguf_files.size() > 1 ? "; name the file itself" : ""));
}

Result<LinearModule> Checkpoint::linear(std::string_view weight_name, std::int64_t rows, std::int64_t cols) const {
  LinearModule module;
  TANDEM_ASSIGN(module.weight, tensor(weight_name, rows, cols));
  module.stored_bytes = module.weight.bytes;
  return module;
}

}  // namespace tandem::model

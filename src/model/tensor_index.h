// SPDX-License-Identifier: Apache-2.0
// The tensors of one checkpoint by Hugging Face name, whatever file format they stand in, with checked look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/tensor_names.h"
#include "model/tensor_view.h"

namespace tandem::model {

/// One tensor as its file describes it; byte range and size are checked by the reader of the format.
struct StoredTensor {
  std::string name;                 ///< Hugging Face name
  std::string stored_name;          ///< as in the file, for messages
  std::string type_name;            ///< as in the file, for messages
  std::optional<TensorType> type;   ///< nullopt: a type that cannot be read (an error only if the tensor is needed)
  std::vector<std::int64_t> shape;  ///< row-major order, as safetensors writes it
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::int32_t interleaved_head_dim = 0;  ///< see TensorView
};

class TensorIndex {
 public:
  /// An error if the name is there already. `file` is named in later messages.
  Result<void> add(StoredTensor tensor, const std::string& file);
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// The shape as stored, or nullptr.
  const StoredTensor* find(std::string_view name) const;
  Result<TensorView> view(std::string_view name, std::int64_t rows, std::int64_t cols) const;

  /// Every tensor that `config` asks for is there with its shape and a type that can be read. Tensors that nobody asks
  /// for are warned of, once per pattern.
  Result<void> check(const ModelConfig& config) const;
  /// The same where tensors are found in another way than by view(); `used` says which ones beyond those of the config
  /// are read.
  Result<void> check(const ModelConfig& config, const std::function<Result<void>(const TensorSpec& spec)>& find,
                     const std::function<bool(std::string_view name)>& used) const;

 private:
  struct Entry {
    StoredTensor tensor;
    std::string file;
  };
  void warn_unknown(const ModelConfig& config, const std::function<bool(std::string_view name)>& used) const;
  void compare_tied_head(const ModelConfig& config) const;

  std::map<std::string, Entry, std::less<>> tensors_;
};

/// A hash over the architecture, and name, shape, type and sampled bytes of every expected tensor.
std::string checkpoint_fingerprint(const Checkpoint& checkpoint);

}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
// A float checkpoint into W8A8 files as msModelSlim writes them for vLLM-Ascend (spec: model_formats.md 5.1, 5.4):
// q, k, v, o, gate, up and down become int8, everything else is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"
#include "kernels/thread_team.h"
#include "model/checkpoint.h"
#include "model/quantize/measure.h"

namespace tandem::model {

struct QuantizeOptions {
  /// Static input scales of these modules; experts stay dynamic, as do modules without a range. Empty: all dynamic.
  InputRanges ranges;
  /// Modules that stay floats, and modules that stay dynamic among static ones: patterns with * and ? over the whole
  /// name ("*.down_proj").
  std::vector<std::string> exclude;
  std::vector<std::string> dynamic;
  std::size_t shard_bytes = std::size_t{4} << 30;
};

struct ModuleReport {
  std::string module;
  std::string type;           ///< "W8A8_DYNAMIC", "W8A8", "FLOAT"
  double weight_error = 0.0;  ///< |W - W'| / |W|, 0 if FLOAT
};

struct QuantizeReport {
  std::vector<ModuleReport> modules;  ///< the linear modules of the layers, in order
  std::size_t float_bytes = 0;        ///< of all tensors before
  std::size_t quantised_bytes = 0;    ///< and after
};

/// Whole name against a pattern in which * stands for any text and ? for one character.
bool matches_glob(std::string_view pattern, std::string_view text);

/// The scale and offset of a static input, from the range that calibration saw; nullopt if it saw only zeros.
std::optional<kernels::StaticInput> static_input_of(const InputRange& range);

/// Writes safetensors and quant_model_description.json into `target` (made if need be), and copies the small files of
/// `source_folder` (config, tokenizer, template). Refused: a source that is quantised already, a pattern that matches
/// nothing, a target with files in it.
Result<QuantizeReport> quantize_checkpoint(const Checkpoint& checkpoint, const std::string& source_folder,
                                           const std::string& target, const QuantizeOptions& options,
                                           kernels::ThreadTeam& team);

}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
// Options of `tandem quantize`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/serve_config.h"

namespace tandem::config {

struct QuantizeConfig {
  std::string source;  ///< a Hugging Face folder
  std::string target;  ///< a folder that is empty or not there yet
  bool static_inputs = false;
  std::string calibration_file;  ///< text; not empty if static_inputs
  std::string text_file;         ///< for the report; "": the calibration text, if there is one
  std::vector<std::string> exclude;
  std::vector<std::string> dynamic;
  std::int64_t max_tokens = 4096;  ///< of each text
  std::int64_t window = 512;       ///< tokens of a sequence
  std::int64_t shard_bytes = std::int64_t{4} << 30;
  std::int32_t threads = 0;  ///< 0: one for each usable CPU
  Isa isa = Isa::kAuto;
};

}  // namespace tandem::config

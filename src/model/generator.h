// SPDX-License-Identifier: Apache-2.0
// Weights from a formula, bit for bit the same everywhere: models without files, for tests, benchmarks and the golden
// values. Spec: model_formats.md 8.1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/tensor_names.h"

namespace tandem::model {

/// FNV-1a-64 of salt + name: where a tensor's random sequence starts.
std::uint64_t generator_seed(std::string_view salt, std::string_view name);
/// The j-th number of the sequence, in [-1, 1), exact in float32.
float generator_unit(std::uint64_t seed, std::uint64_t j);

/// A checkpoint whose rows are computed when they are read; all tensors are BF16 values. It has no tokenizer.
std::unique_ptr<Checkpoint> make_synthetic_checkpoint(const ModelConfig& config, std::string salt);

}  // namespace tandem::model

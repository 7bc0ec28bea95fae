// SPDX-License-Identifier: Apache-2.0
// A GGUF file as a checkpoint: configuration, tokenizer and chat template from its metadata, tensors under Hugging Face
// names and in Hugging Face's row order.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::model {

Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path, const boost::json::object& hf_overrides);

}  // namespace tandem::model

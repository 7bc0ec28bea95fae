// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder: config.json, safetensors (one file, sharded with an index, or a set), tokenizer files.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "model/checkpoint.h"

namespace tandem::model {

Result<std::unique_ptr<Checkpoint>> open_hf_folder(const std::string& folder, const boost::json::object& hf_overrides);

}  // namespace tandem::model

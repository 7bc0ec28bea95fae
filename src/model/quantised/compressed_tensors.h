// SPDX-License-Identifier: Apache-2.0
// llm-compressor's checkpoints: int8 (W8A8) and packed int4 (W4A16). Spec: model_formats.md 5.2, 5.3.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>

#include "model/quantised/format.h"

namespace tandem::model {

/// `config`: config.json's quantization_config. Schemes that cannot be read are refused by group and field.
Result<std::unique_ptr<QuantisedFormat>> compressed_tensors_format(const boost::json::object& config);

}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
// msModelSlim's files for vLLM-Ascend: a description with one type for each tensor. Spec: model_formats.md 5.1.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>

#include "model/quantised/format.h"

namespace tandem::model {

/// `description`: a parsed quant_model_description*.json.
Result<std::unique_ptr<QuantisedFormat>> ascend_format(const boost::json::object& description);

}  // namespace tandem::model

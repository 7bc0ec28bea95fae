// SPDX-License-Identifier: Apache-2.0
// Shapes of models by name: the golden ones, and real models' shapes for benchmarks. And configs back to config.json.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace tandem::tools {

struct NamedShape {
  std::string_view name;
  std::string_view salt;    ///< of the weight generator
  std::string_view config;  ///< config.json
};

const std::vector<NamedShape>& named_shapes();
/// An error lists the names there are.
Result<NamedShape> find_shape(std::string_view name);

/// The config.json that parse_config() reads back as `config`.
boost::json::object config_json(const model::ModelConfig& config);

}  // namespace tandem::tools

// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: settings from config.json, and the cos/sin tables that kernels read. Spec:
// model_formats.md 2.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/thread_team.h"
#include "model/config.h"

namespace tandem::model {

/// Reads rope_parameters (wins), or rope_theta and rope_scaling, of a merged config.json.
Result<RopeConfig> parse_rope(const boost::json::object& config);

/// [position][head_dim / 2], attention factor multiplied in. Made from angles in double, so that far positions are
/// exact.
struct RopeTables {
  std::vector<float> cos;
  std::vector<float> sin;
};
RopeTables make_rope_tables(const RopeConfig& rope, std::int32_t head_dim, std::int64_t max_positions,
                            kernels::ThreadTeam& team);

/// Every setting that changes a rotated key, as text: part of the identity of KV.
std::string rope_identity(const RopeConfig& rope, std::int32_t head_dim);

}  // namespace tandem::model

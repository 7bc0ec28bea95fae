// SPDX-License-Identifier: Apache-2.0
// Modules of a checkpoint into one layer for the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/linear_module.h"

namespace tandem::model {

struct ModulePart {
  LinearModule module;
  std::vector<float> bias;  ///< [rows], or empty
};

/// One layer of all parts' rows, in order; all have the same inputs. int8 modules stay int8, the others become `type`.
/// Parts that can share a matrix do; parts of another type, or with another static scale of their input, are computed
/// for themselves (kernels::Ops::join).
std::unique_ptr<kernels::PackedLinear> pack_modules(const kernels::Ops& ops, kernels::ThreadTeam& team,
                                                    kernels::WeightType type, const std::vector<ModulePart>& parts);

}  // namespace tandem::model

// SPDX-License-Identifier: Apache-2.0
#include "app/isa_choice.h"

#include <fmt/format.h>

namespace tandem::app {

Result<kernels::Isa> choose_isa(config::Isa asked) {
  kernels::Isa isa = kernels::detect_isa();
  if (asked == config::Isa::kPortable) isa = kernels::Isa::kPortable;
  if (asked == config::Isa::kAvx2) isa = kernels::Isa::kAvx2;
  if (asked == config::Isa::kAvx512) isa = kernels::Isa::kAvx512;
  if (auto ops = kernels::ops_for(isa); !ops)
    return ops.error().context(fmt::format("--isa {}", kernels::isa_name(isa)));
  return isa;
}

}  // namespace tandem::app

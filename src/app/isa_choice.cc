// SPDX-License-Identifier: Apache-2.0
#include "app/isa_choice.h"

#include <fmt/format.h>

namespace tandem::app {

namespace {

kernels::Isa named(config::Isa asked) {
  switch (asked) {
    case config::Isa::kAuto:
      break;
    case config::Isa::kPortable:
      return kernels::Isa::kPortable;
    case config::Isa::kAvx2:
      return kernels::Isa::kAvx2;
    case config::Isa::kAvx512:
      return kernels::Isa::kAvx512;
    case config::Isa::kNeon:
      return kernels::Isa::kNeon;
    case config::Isa::kDotprod:
      return kernels::Isa::kDotprod;
  }
  return kernels::detect_isa();
}

}  // namespace

Result<kernels::Isa> choose_isa(config::Isa asked) {
  const kernels::Isa isa = named(asked);
  if (auto ops = kernels::ops_for(isa); !ops)
    return ops.error().context(fmt::format("--isa {}", kernels::isa_name(isa)));
  return isa;
}

}  // namespace tandem::app

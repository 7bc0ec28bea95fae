// SPDX-License-Identifier: Apache-2.0
// What this CPU has, and the Ops for it.
#include <algorithm>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/kernels.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tandem::kernels {
namespace {

#if defined(__x86_64__)
// The compiler's checks include that the operating system saves the wide registers.
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  __builtin_cpu_init();
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#elif defined(__aarch64__)
bool has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

/// nullptr where this CPU cannot run it.
const Ops* find_ops(Isa isa) {
#if defined(__x86_64__)
  static const cpu::CpuOps avx2(Isa::kAvx2, cpu::avx2_table());
  static const cpu::CpuOps avx512(Isa::kAvx512, cpu::avx512_table());
  if (isa == Isa::kAvx2 && has_avx2()) return &avx2;
  if (isa == Isa::kAvx512 && has_avx512()) return &avx512;
#elif defined(__aarch64__)
  static const cpu::CpuOps neon(Isa::kNeon, cpu::neon_table());
  static const cpu::CpuOps dotprod(Isa::kDotprod, cpu::dotprod_table());
  if (isa == Isa::kNeon) return &neon;
  if (isa == Isa::kDotprod && has_dotprod()) return &dotprod;
#endif
  static const cpu::CpuOps portable(Isa::kPortable, cpu::portable_table());
  return isa == Isa::kPortable ? &portable : nullptr;
}

}  // namespace

Isa detect_isa() { return *std::find_if(kAllIsas.rbegin(), kAllIsas.rend(), find_ops); }

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    case Isa::kDotprod:
      return "dotprod";
  }
  return "unknown";
}

Result<const Ops*> ops_for(Isa isa) {
  if (const Ops* ops = find_ops(isa)) return ops;
  return Status(Code::kUnsupported,
                "kernels: this CPU cannot run " + std::string(isa_name(isa)) + "; the best it has is " +
                    std::string(isa_name(detect_isa())),
                Scope::kDevice);
}

}  // namespace tandem::kernels

// SPDX-License-Identifier: Apache-2.0
// What this CPU has, and the Ops for it.
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/kernels.h"

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
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace

Isa detect_isa() {
  if (has_avx512()) return Isa::kAvx512;
  return has_avx2() ? Isa::kAvx2 : Isa::kPortable;
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Result<const Ops*> ops_for(Isa isa) {
  const bool can_run =
      isa == Isa::kPortable || (isa == Isa::kAvx2 && has_avx2()) || (isa == Isa::kAvx512 && has_avx512());
  if (!can_run) {
    return Status(Code::kUnsupported,
                  "kernels: this CPU cannot run " + std::string(isa_name(isa)) + "; the best it has is " +
                      std::string(isa_name(detect_isa())),
                  Scope::kDevice);
  }
  static const cpu::CpuOps portable(Isa::kPortable, cpu::portable_table());
#if defined(__x86_64__)
  static const cpu::CpuOps avx2(Isa::kAvx2, cpu::avx2_table());
  static const cpu::CpuOps avx512(Isa::kAvx512, cpu::avx512_table());
  if (isa == Isa::kAvx2) return static_cast<const Ops*>(&avx2);
  if (isa == Isa::kAvx512) return static_cast<const Ops*>(&avx512);
#endif
  return static_cast<const Ops*>(&portable);
}

}  // namespace tandem::kernels

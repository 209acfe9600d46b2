// Compiled without AMX flags: it runs on any machine, to say whether the table does.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/kernels/amx/amx_table.h"

namespace kvasir {
namespace {

// Returns whether the processor has tiles of 8-bit integers and of bf16, and the kernel lets this process use them. A
// process must ask: a thread's saved state grows by 8 KiB.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  constexpr unsigned kAmxInt8 = 1u << 25;
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  if ((edx & kAll) != kAll) return false;
#ifdef __linux__
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

const KernelTable* amx_kernels() {
  static const KernelTable* const vectors = avx512_kernels();
  static const bool runs = vectors != nullptr && __builtin_cpu_supports("avx512bf16") && has_tiles();
  if (!runs) return nullptr;
  // Everything but products with quantised and with BF16 weights and attention over pages of 16 bits is that of
  // AVX-512.
  static const KernelTable table = [] {
    KernelTable t = *vectors;
    t.name = t.arithmetic = "amx";
    t.prefers_words = false;  // tiles multiply floats of 16 bits
    t.matmul = amx::matmul;
    t.attend = amx::attend;
    t.attend_gathered = amx::attend_gathered;
    t.rounds_bf16_rows = true;
    t.attention_rounding = 0x1p-14F;
    return t;
  }();
  return &table;
}

}  // namespace kvasir

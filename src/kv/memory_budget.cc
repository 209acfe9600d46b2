#include "kv/memory_budget.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

bool MemoryBudget::try_charge(std::uint64_t bytes) {
  if (bytes > available()) return false;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

void MemoryBudget::release(std::uint64_t bytes) {
  KVASIR_CHECK(bytes <= used_);
  used_ -= bytes;
}

bool MemoryCharge::try_resize(std::uint64_t bytes) {
  if (bytes > bytes_ && !budget_->try_charge(bytes - bytes_)) return false;
  if (bytes < bytes_) budget_->release(bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

Status kv_memory_full(const MemoryBudget& budget, std::uint64_t needed) {
  return exhausted(
             "the KV memory of {} bytes has no room: {} bytes in use, {} more needed; give it more, or choose a "
             "policy that forgets",
             budget.capacity(), budget.used(), needed)
      .about({"kv_memory", "policy"});
}

}  // namespace kvasir

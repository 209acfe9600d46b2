// The states of one sequence, for layers that have a state in place of keys and values. Charged to the cache's budget.
// Thread-safety: none, as the cache. A backend advances the states between calls.
#pragma once

#include <cstring>
#include <new>
#include <span>

#include "base/aligned_buffer.h"
#include "kv/page_pool.h"

namespace kvasir {

// Move-only; gives its bytes back with the object.
class LayerStates {
 public:
  // `all`: bytes of all layers. If the pool has no store, the bytes are charged but not allocated.
  LayerStates(std::uint64_t all, PagePool* pool)
      : all_(all), has_memory_(pool->store() != nullptr), budget_(&pool->budget()), charge_(&pool->budget()) {}

  bool exist() const { return all_ > 0; }
  // Allocates zeroed states; does nothing the second time. A sequence takes them with its first token. Errors:
  // kResourceExhausted.
  Status take() {
    if (untaken() == 0) return {};
    if (!charge_.try_resize(all_)) return kv_memory_full(*budget_, all_);
    if (!has_memory_) return {};
    try {
      std::memset(memory_.ensure(all_), 0, all_);
    } catch (const std::bad_alloc&) {
      static_cast<void>(charge_.try_resize(0));
      throw;
    }
    return {};
  }
  std::uint64_t untaken() const { return all_ - bytes(); }
  std::uint64_t bytes() const { return charge_.bytes(); }  // charged
  // Each layer's state is at LayerLanes::state. Empty before take().
  std::span<std::byte> memory() { return {memory_.data(), memory_.size()}; }
  std::span<const std::byte> memory() const { return {memory_.data(), memory_.size()}; }

 private:
  std::uint64_t all_;
  bool has_memory_;
  const MemoryBudget* budget_;
  MemoryCharge charge_;
  AlignedBuffer<std::byte> memory_;
};

}  // namespace kvasir

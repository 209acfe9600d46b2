// The states of one sequence's layers that hold one in place of keys and values: bytes, charged to the cache's budget.
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
  // `all`: bytes of all layers, once they are taken. Without a store in the pool they are charged and have no memory.
  LayerStates(std::uint64_t all, PagePool* pool)
      : all_(all), has_memory_(pool->store() != nullptr), budget_(&pool->budget()), charge_(&pool->budget()) {}

  bool exist() const { return all_ > 0; }
  // Takes the states as they begin, once: a sequence does with its first token. Errors: kResourceExhausted.
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
  // Each layer's state is at LayerLanes::state. Empty until they are taken.
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

// The ledger of bytes that bounds the KV memory.
//
// Thread-safety: none; one thread plans and allocates.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Pages whose bytes are charged to a budget, in blocks that also hold free pages.
class PageBlockHolder {
 public:
  virtual ~PageBlockHolder() = default;
  virtual std::uint64_t charged() const = 0;    // bytes of pages in use
  virtual std::uint64_t allocated() const = 0;  // bytes of these, and of free pages that have memory
  // Gives the memory of a block of free pages to the system. Returns false if there is none.
  virtual bool give_back_block() = 0;
};

// A bound on bytes, and the bytes charged to it: pages, page tables, states of layers and of policies, each charged
// before it is allocated.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t capacity) : capacity_(capacity) {}

  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t available() const { return capacity_ - used_; }

  // Optional: a callback that gives back some memory of a cache; returns false if there is nothing more. It must
  // outlive its use.
  void set_reclaimer(std::function<bool()> reclaimer) { reclaimer_ = std::move(reclaimer); }
  // As set_reclaimer, for memory that is cheaper to fill again: that one is asked only when this has nothing more.
  void set_first_reclaimer(std::function<bool()> reclaimer) { first_reclaimer_ = std::move(reclaimer); }
  // Calls the reclaimers until `bytes` are available. Returns false if they are not when nothing is left to give back.
  bool make_available(std::uint64_t bytes) {
    while (bytes > available())
      if (!(first_reclaimer_ && first_reclaimer_()) && !(reclaimer_ && reclaimer_())) return false;
    return true;
  }

  // The pools of pages that are charged here. A holder removes itself before it is destroyed.
  std::span<PageBlockHolder* const> holders() const { return holders_; }
  void add(PageBlockHolder* holder) { holders_.push_back(holder); }
  void remove(PageBlockHolder* holder) { std::erase(holders_, holder); }

  bool try_charge(std::uint64_t bytes);  // false, and nothing charged, if it does not fit
  void release(std::uint64_t bytes);     // REQUIRES: charged before

 private:
  std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
  std::vector<PageBlockHolder*> holders_;
  std::function<bool()> first_reclaimer_;
  std::function<bool()> reclaimer_;
};

// Bytes of one owner, charged to a budget until it is destroyed. Move-only. The budget outlives it.
class MemoryCharge {
 public:
  explicit MemoryCharge(MemoryBudget* budget) : budget_(budget) {}
  MemoryCharge(MemoryCharge&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() { budget_->release(bytes_); }

  std::uint64_t bytes() const { return bytes_; }
  // Charges `bytes` in place of the earlier charge. Returns false, and changes nothing, if that does not fit.
  bool try_resize(std::uint64_t bytes);

 private:
  MemoryBudget* budget_;
  std::uint64_t bytes_ = 0;
};

// kResourceExhausted: `needed` bytes more than the budget has.
Status kv_memory_full(const MemoryBudget& budget, std::uint64_t needed);

}  // namespace kvasir

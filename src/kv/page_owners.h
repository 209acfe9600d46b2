// Who holds references to pages, and how many of the pages of each have other references too.
//
// Thread-safety: none; as the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace kvasir {

// Who holds references to pages: a page table, say. An owner refers to a page at most once; only kNobody may do so more
// often, and its pages are not counted as shared.
enum class PageOwner : std::uint32_t { kNobody = 0 };

class PageOwners {
 public:
  // Returns an owner without references, which may have the number of one that was removed.
  // An owner takes about 13 bytes, which the budget is not charged for and which are kept for the next one.
  PageOwner add() {
    if (!removed_.empty()) {
      const PageOwner owner = removed_.back();
      removed_.pop_back();
      return owner;
    }
    shared_.push_back(0);
    is_cache_.push_back(0);
    removed_.reserve(shared_.capacity());  // removing an owner never allocates
    return static_cast<PageOwner>(shared_.size() - 1);
  }
  void remove(PageOwner owner) {  // REQUIRES: it refers to no page
    KVASIR_CHECK(owner != PageOwner::kNobody && shared(owner) == 0);
    is_cache_[index(owner)] = 0;
    removed_.push_back(owner);
  }

  // Pages that the owner refers to and that have other references too. O(1): kept up to date by every change of a
  // reference, another owner's included. REQUIRES: not kNobody.
  std::uint64_t& shared(PageOwner owner) {
    KVASIR_CHECK(index(owner) < shared_.size());
    return shared_[index(owner)];
  }
  std::uint64_t shared(PageOwner owner) const { return shared_[index(owner)]; }

  bool is_cache(PageOwner owner) const { return is_cache_[index(owner)] != 0; }  // see PagePool::mark_cached
  void mark_cache(PageOwner owner) {
    KVASIR_CHECK(owner != PageOwner::kNobody && !is_cache(owner));
    is_cache_[index(owner)] = 1;
  }

 private:
  static std::size_t index(PageOwner owner) { return static_cast<std::size_t>(owner); }

  std::vector<std::uint64_t> shared_{0};  // [owners ever]
  std::vector<char> is_cache_{0};         // [owners ever]
  std::vector<PageOwner> removed_;        // whose numbers are used again
};

}  // namespace kvasir

// The owners of references to pages, and for each owner the number of its pages that have other references.
//
// Thread-safety: none; as the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace kvasir {

// A holder of references to pages, such as a page table. An owner refers to a page at most once. Only kNobody may refer
// to a page more often; its shared pages are not counted.
enum class PageOwner : std::uint32_t { kNobody = 0 };

class PageOwners {
 public:
  // Returns an owner without references, which may reuse a removed owner's number. An owner takes about 13 bytes: the
  // budget is not charged for them, and they are freed only with this object.
  PageOwner add() {
    if (!removed_.empty()) {
      const PageOwner owner = removed_.back();
      removed_.pop_back();
      return owner;
    }
    shared_.push_back(0);
    is_cache_.push_back(0);
    removed_.reserve(shared_.capacity());  // so remove never allocates
    return static_cast<PageOwner>(shared_.size() - 1);
  }
  void remove(PageOwner owner) {  // REQUIRES: the owner refers to no page
    KVASIR_CHECK(owner != PageOwner::kNobody && shared(owner) == 0);
    is_cache_[index(owner)] = 0;
    removed_.push_back(owner);
  }

  // The number of pages of the owner that have other references too. O(1): every change of a reference, of any owner,
  // updates it. REQUIRES: not kNobody.
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
  std::vector<PageOwner> removed_;        // owners whose numbers add() reuses
};

}  // namespace kvasir

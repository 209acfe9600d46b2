// A cache whose pages are in memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "kv/kv_cache.h"

namespace kvasir::test {

class PagedCache {
 public:
  // Keys are rotated by these frequencies, in their first dimensions.
  PagedCache(const KvCacheShape& shape, std::uint64_t budget, std::vector<double> inverse_frequencies = {1.0})
      : page_(shape.page), store_(&generic_kernels(), &threads_, {rotation_by(std::move(inverse_frequencies))}) {
    auto cache = KvCache::create(shape, budget, &store_);
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    if (cache.ok()) cache_ = std::move(*cache);
  }

  KvCache& operator*() const { return *cache_; }
  KvCache* operator->() const { return cache_.get(); }
  std::byte* data(PageId page) const { return store_.data(page); }
  void write(PageId page, int slot, const float* key, const float* value) {
    generic_kernels().store_kv(page_, store_.data(page), slot, key, value);
  }

 private:
  static Rotation rotation_by(std::vector<double> frequencies) {
    const int dims = 2 * static_cast<int>(frequencies.size());
    return {dims, std::move(frequencies), 1};
  }

  PageFormat page_;
  ThreadPool threads_{1};
  CpuPageStore store_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace kvasir::test

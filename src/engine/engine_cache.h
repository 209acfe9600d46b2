// The KV cache of an engine: made when the first sequence needs it, in the size that this one asks for.
// Thread-safety: that of Engine; runner() and find_place() as far as Engine::plan() needs them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/engine.h"
#include "planning/cache_sizing.h"
#include "runtime/loaded_model.h"
#include "scheduler/batch_runner.h"
#include "session/session_file.h"

namespace kvasir {

class EngineCache {
 public:
  explicit EngineCache(std::shared_ptr<LoadedModel> model) : model_(std::move(model)) {}

  // Null until the first session or request sizes the cache.
  const std::shared_ptr<BatchRunner>& runner() const { return runner_; }
  CacheReport report() const;

  // Codecs that sequences may have, the default first.
  std::vector<KvCodec> codecs() const { return runner_ != nullptr ? runner_->cache()->codecs() : model_->codecs; }
  // The shape of the pages that a caller asks for; `codec`: empty for the default. Errors: kInvalidArgument unless it
  // is one that sequences may have.
  Result<KvCacheShape> shape_of(const std::string& codec) const;

  // Returns policy, chunk and bytes for sequences. Creates nothing but the policy. `policy_text`: empty for the
  // default. `protect`: SessionOptions::protect.
  Result<CacheSize> find_place(const std::string& policy_text, std::int64_t protect, const KvCacheShape& shape,
                               int sequences) const;
  // Makes the cache if there is none. Where kv_memory gives no size, what a draft model takes for so many sequences
  // comes on top of the budget.
  Status ensure_cache(std::uint64_t budget, int sequences);

  // Returns the shape of a file's pages. Errors: kInvalidArgument unless the cache may have them. REQUIRES: runner().
  Result<KvCacheShape> check_pages(const SessionHead& head) const;
  // Returns the cache for a session of a file, whose pages have a format of their own, and the chunk of its further
  // prompts. Makes it if there is none.
  Result<std::shared_ptr<KvCache>> cache_for(const SessionHead& head, const RetentionPolicy& policy, int sequences,
                                             int* chunk);

 private:
  CacheConditions conditions(const KvCacheShape& shape, int chunk) const;
  Result<CacheSize> default_place(const CacheConditions& now) const;
  KvCodec default_codec() const;
  void plan_drafts(std::uint64_t budget, int sequences);
  // Of the cache; while there is none, of the one that would be made.
  const KvCacheShape& cache_shape() const { return runner_ != nullptr ? runner_->cache()->shape() : model_->kv_shape; }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  std::uint64_t draft_bytes_ = 0;  // of the cache's budget, for the draft model alone
  mutable std::mutex default_mutex_;
  mutable std::map<std::pair<std::string, std::int64_t>, CacheSize> default_places_;  // by codec and protected tokens
};

}  // namespace kvasir

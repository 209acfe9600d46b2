// Stores outside memory, a disk or a server, as requests use them: prefixes are fetched from there and written there.
// Thread-safety: as RequestQueue.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "prefix_store/prefix_store.h"
#include "prefix_store/prefix_tiers.h"
#include "requests/request.h"
#include "scheduler/driver.h"

namespace kvasir {

class RequestTiers {
 public:
  // Opens the stores, from near to far. `prefixes` outlives this.
  void open(const Driver& driver, PrefixStore* prefixes, std::vector<std::unique_ptr<BlobStore>> stores,
            PrefixTiers::Warn warn);

  // Whether anything may be fetched for a request that starts.
  bool may_fetch(const Request& request) const;
  // Begins to fetch the first tokens of such a request, where that is worth it. Returns whether the request fetches
  // now. `found`: tokens that the prefix cache has of it. REQUIRES: kWaiting, may_fetch().
  bool begin_fetch(Request& request, std::int64_t found, double seconds_per_token);
  // Ends the fetch of a request if it is done. Returns whether it goes on. REQUIRES: kFetching.
  static bool still_fetches(Request& request);
  bool fetching() const { return tiers_ != nullptr && tiers_->fetching(); }

  // Writes what the prefix cache holds of the first `seen` tokens of a request. What has a time to live stays in memory
  // alone. `from`: tokens for which this was done before.
  void write_pages(const Request& request, std::int64_t seen, std::int64_t from);
  // Writes a snapshot of the request as it is now. REQUIRES: it holds a sequence, at the end of a chunk of its prompt.
  void write_snapshot(const Request& request);

  // Takes what the stores have answered. Between two passes.
  void advance();
  // Waits until a store has answered, or so long.
  void wait(std::chrono::milliseconds most);
  // Whether a store was asked for anything that it has not answered.
  bool busy() const { return tiers_ != nullptr && tiers_->busy(); }
  std::uint64_t buffer_bytes() const { return tiers_ != nullptr ? tiers_->buffer_bytes() : 0; }
  std::vector<PrefixTierReport> report() const;

 private:
  PrefixStore* prefixes_ = nullptr;
  std::unique_ptr<PrefixTiers> tiers_;  // null: prefixes are in memory alone
};

}  // namespace kvasir

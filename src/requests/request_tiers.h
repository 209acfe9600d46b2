// Stores outside memory, on a disk or a server, from which requests' prefixes are fetched and to which they are
// written.
// Thread-safety: as RequestQueue.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "prefix_store/prefix_store.h"
#include "prefix_store/prefix_tiers.h"
#include "requests/request.h"
#include "scheduler/batch_runner.h"

namespace kvasir {

class RequestTiers {
 public:
  // Opens the stores, nearest first. `prefixes` outlives this.
  void open(const BatchRunner& runner, PrefixStore* prefixes, std::vector<std::unique_ptr<BlobStore>> stores,
            PrefixTiers::Warn warn);

  // Returns whether anything may be fetched for a request that starts.
  bool may_fetch(const Request& request) const;
  // Begins to fetch the first tokens of such a request, if that pays. Returns whether the request now fetches. `found`:
  // tokens of it in the prefix cache. REQUIRES: kWaiting, may_fetch().
  bool begin_fetch(Request& request, std::int64_t found, double seconds_per_token);
  // Ends the fetch of a request if it is done; returns whether it continues. REQUIRES: kFetching.
  static bool still_fetches(Request& request);
  bool fetching() const { return tiers_ != nullptr && tiers_->fetching(); }

  // Writes what the prefix cache holds of a request's first `seen` tokens, unless it has a time to live. `from`: tokens
  // already written.
  void write_pages(const Request& request, std::int64_t seen, std::int64_t from);
  // Writes a snapshot of the request as it is now. REQUIRES: it holds a sequence, at the end of a chunk of its prompt.
  void write_snapshot(const Request& request);

  // Takes the stores' answers. Call it between two passes.
  void advance();
  // Waits until a store has answered, at most so long.
  void wait(std::chrono::milliseconds most);
  // Returns whether any store has yet to answer.
  bool busy() const { return tiers_ != nullptr && tiers_->busy(); }
  std::uint64_t buffer_bytes() const { return tiers_ != nullptr ? tiers_->buffer_bytes() : 0; }
  std::vector<PrefixTierReport> report() const;

 private:
  PrefixStore* prefixes_ = nullptr;
  std::unique_ptr<PrefixTiers> tiers_;  // null: prefixes are only in memory
};

}  // namespace kvasir

// How many bytes of KV memory requests hold, will need, and share with each other.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "requests/request.h"
#include "requests/request_prefixes.h"
#include "scheduler/driver.h"
#include "scheduler/schedule.h"

namespace kvasir {

class RequestMemory {
 public:
  // `prefixes` outlives this.
  RequestMemory(std::shared_ptr<Driver> driver, const RequestPrefixes* prefixes);

  std::uint64_t capacity() const { return driver_->cache()->budget().capacity(); }
  // Returns the bytes that sequences may have: those that nobody holds, and those that the prefix cache can give back.
  std::uint64_t available() const;

  // Returns the bytes of the peak of a request, and of the samples that will be forked from it.
  std::uint64_t estimate(const Request& request) const;
  // Returns the bytes that a request holds. Pages that several samples share are divided among these. Pages that it
  // shares with a session do not count: they do not come back with it. REQUIRES: it holds pages.
  std::uint64_t used(const Request& request) const;
  // Returns the bytes that come back when a request gives up its pages. REQUIRES: it holds pages.
  std::uint64_t freed_by_preemption(const Request& request) const;
  // Returns the bytes that the next rows of a request take.
  std::uint64_t next_rows(Request& request, int rows) const;
  // Returns at most how many of these are for copies of pages that are shared with nothing but the prefix cache.
  std::uint64_t copies_for_prefixes(Request& request, int rows) const;

  // Returns the bytes of the pages that a request would continue from the prefix cache, if a running one of the same
  // text holds them.
  std::uint64_t shared_prefix(const Request& request, std::span<Request* const> all) const;
  // Divides the pages that several requests of one tenant share among these: lowers ScheduleTask::used. `tasks`: of
  // `all`.
  static void divide_shared(std::span<Request* const> all, std::vector<ScheduleTask>& tasks);

  // Returns the report of what a request holds. While it has not caught up with what it gave up: of that.
  KvReport report(const Request& request) const;

 private:
  std::shared_ptr<Driver> driver_;
  const RequestPrefixes* prefixes_;
};

}  // namespace kvasir

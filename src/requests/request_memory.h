// Computes the bytes of KV memory that requests hold, will need, and share.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "requests/request.h"
#include "requests/request_prefixes.h"
#include "scheduler/batch_runner.h"
#include "scheduler/schedule.h"

namespace kvasir {

class RequestMemory {
 public:
  // `prefixes` outlives this.
  RequestMemory(std::shared_ptr<BatchRunner> runner, const RequestPrefixes* prefixes);

  std::uint64_t capacity() const { return runner_->cache()->budget().capacity(); }
  // Returns the bytes available to sequences: free ones, and those that the prefix cache and the draft model
  // can give back.
  std::uint64_t available() const;

  // Returns the bytes of the peak of a request and of the samples still to be forked from it.
  std::uint64_t estimate(const Request& request) const;
  // Returns the bytes that a request holds. Pages shared by samples are divided among them. Pages shared with a session
  // do not count, since preempting does not free them. REQUIRES: it holds pages.
  std::uint64_t used(const Request& request) const;
  // Returns the bytes freed when a request gives up its pages. REQUIRES: it holds pages.
  std::uint64_t freed_by_preemption(const Request& request) const;
  // Returns the bytes of a request's next rows.
  std::uint64_t next_rows(Request& request, int rows) const;
  // Returns an upper bound of those bytes that are copies of pages shared only with the prefix cache.
  std::uint64_t copies_for_prefixes(Request& request, int rows) const;

  // Returns the bytes of the pages that a request would continue from the prefix cache, if a running request of the
  // same text holds them.
  std::uint64_t shared_prefix(const Request& request, std::span<Request* const> all) const;
  // Divides pages that several requests of one tenant share among them: lowers ScheduleTask::used. `tasks`: those of
  // `all`.
  static void divide_shared(std::span<Request* const> all, std::vector<ScheduleTask>& tasks);

  // Returns the report of what a request holds, or of what it gave up until it holds as much again.
  KvReport report(const Request& request) const;

 private:
  std::shared_ptr<BatchRunner> runner_;
  const RequestPrefixes* prefixes_;
};

}  // namespace kvasir

// Evict = demote, for one sequence: the demoted pages of its tables, and what its rows read of them again.
//
// Generated tokens recall, and so does the last token of a prompt: it is the one whose logits the answer begins with.
// Other rows of prompts recall nothing. What is demoted when a row recalls depends on the tokens and on the policy's
// chunks; under policies by range, whose chunks change nothing, the last token of a prompt is a chunk of its own
// (PolicyTraits::last_alone).
// Thread-safety: one caller at a time, but for OffloadedPages.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "offload/demoted_pages.h"
#include "offload/recall.h"
#include "retention/policy.h"

namespace kvasir {

// Whether there is a file for what the policy drops, if it wants one. Errors: kInvalidArgument.
Status check_demotion_file(const RetentionPolicy& policy, const DemotionFile* file);

class SequenceDemotion {
 public:
  // Null where the policy does not demote. `shape`: of the sequence, with its codec. `file`: null where there is none.
  // Errors: kInvalidArgument (the policy wants a file), kResourceExhausted.
  static Result<std::unique_ptr<SequenceDemotion>> create(const RetentionPolicy& policy, KvCache* cache,
                                                          const KvCacheShape& shape, DemotionFile* file);
  // The most that it takes in a sequence of `tokens` tokens; 0 where the policy does not demote.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens);

  // Bytes charged, and of these those that go with it.
  std::uint64_t bytes() const;
  std::uint64_t own_bytes() const;
  // What it may take more, at most, when `rows` rows have run and a chunk ends.
  std::uint64_t may_take(const KvSequence& tables, int rows) const;
  // See DemotedPages::take. REQUIRES: may_take() is available.
  void take(int table, const PageTable& from, std::span<const IndexRange> ranges);

  // For a pass whose last row is the token `row`; null while nothing is demoted.
  OffloadedPages* begin_pass(TokenIndex row);
  // Of the last pass, and of what was taken since: what could not be written or read.
  Status status() const;

  bool empty() const;
  struct Report {
    double tokens = 0;        // demoted, as the mean over lanes
    std::uint64_t bytes = 0;  // of memory
    std::uint64_t file_bytes = 0;
    std::int64_t recalled = 0;  // pages of a lane that rows read again, so far
    std::int64_t fetched = 0;   // of these, those that had to be read from the file
    double seconds_waited = 0;  // for these, and for room to write
  };
  Report report() const;
  std::span<const DemotedPages> tables() const { return tables_; }

  // What a fork takes of its own.
  std::uint64_t fork_bytes() const;
  // Shares what is encoded. Errors: kResourceExhausted.
  Result<std::unique_ptr<SequenceDemotion>> fork() const;

 private:
  SequenceDemotion(KvCache* cache, const Demotion& demotion) : cache_(cache), demotion_(demotion) {}
  void add_recall();

  KvCache* cache_;
  Demotion demotion_;
  std::vector<DemotedPages> tables_;
  std::unique_ptr<Recall> recall_;
};

}  // namespace kvasir

// Demotion in one sequence: tokens that its policy drops are copied into demoted pages, from which later rows recall
// some.
//
// The rows that recall are those of generated tokens and of the last token of a prompt, with whose logits the answer
// begins. What is demoted by then depends on the tokens and the policy's chunks. Under policies by range, where chunks
// must change nothing, the last token of a prompt is therefore a chunk of its own (PolicyTraits::last_alone).
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

// Checks that there is a file if the policy demotes to one. Errors: kInvalidArgument.
Status check_demotion_file(const RetentionPolicy& policy, const DemotionFile* file);

class SequenceDemotion {
 public:
  // Returns null where the policy does not demote. `shape`: of the sequence, with its codec. `file`: null: no folder
  // was given. Errors: those of check_demotion_file, kResourceExhausted.
  static Result<std::unique_ptr<SequenceDemotion>> create(const RetentionPolicy& policy, KvCache* cache,
                                                          const KvCacheShape& shape, DemotionFile* file);
  // Returns the most bytes that demotion takes in a sequence of `tokens` tokens; 0 where the policy does not demote.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens);

  std::uint64_t bytes() const;      // charged
  std::uint64_t own_bytes() const;  // of these, what is freed with this object
  // Returns the most bytes that it may take beyond bytes() when `rows` more rows have run and a chunk ends.
  std::uint64_t may_take(const KvSequence& tables, int rows) const;
  // Copies tokens that the table is about to drop: see DemotedPages::take. REQUIRES: may_take() is available.
  void take(int table, const PageTable& from, std::span<const IndexRange> ranges);

  // Returns what recalls tokens for a pass whose last row is the token `row`; null while nothing is demoted.
  OffloadedPages* begin_pass(TokenIndex row);
  // Returns the first failure to read a page in the last pass, or to write one.
  Status status() const;

  bool empty() const;
  struct Report {
    double tokens = 0;        // demoted, as the mean over lanes
    std::uint64_t bytes = 0;  // of memory
    std::uint64_t file_bytes = 0;
    std::int64_t recalled = 0;  // pages of a lane that rows have recalled
    std::int64_t fetched = 0;   // of these, read from the file
    double seconds_waited = 0;  // for reads, and for room to write
  };
  Report report() const;
  std::span<const DemotedPages> tables() const { return tables_; }

  std::uint64_t fork_bytes() const;  // what a fork takes of its own
  // Makes that of a forked sequence; encoded columns are shared. Errors: kResourceExhausted, status().
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

// Totals of a queue since its start. Tests use them to assert that the tested event took place.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

struct RequestCounters {
  // Passes.
  std::int64_t passes = 0;
  std::int64_t mixed = 0;        // passes of prompt rows and generated rows
  std::int64_t mixed_rows = 0;   // prompt rows of mixed passes
  int most_mixed_rows = 0;       // most in one mixed pass
  std::int64_t prepared = 0;     // turns of tasks that may draw within their pass
  std::size_t most_running = 0;  // tasks in a pass
  int most_rows = 0;             // most prompt rows in a pass
  double longest_mixed = 0;      // seconds of the longest mixed pass
  // Longest expected seconds of a mixed pass with more than kLeastPromptRows prompt rows.
  double longest_expected = 0;
  // Tokens.
  std::int64_t prompt_tokens = 0;  // read or taken from the prefix cache
  std::int64_t generated_tokens = 0;
  std::int64_t drafted_tokens = 0;  // of samples that ended
  std::int64_t drafts_come_true = 0;
  std::int64_t recomputed_tokens = 0;  // run again after preemptions
  std::int64_t evicted_tokens = 0;     // dropped by policies, of samples that ended
  std::int64_t shadow_tokens = 0;      // run by shadows to compare policies with the full cache
  std::int64_t quality_checks = 0;     // shadows that have measured all they should
  // Requests that ended for lack of memory.
  std::int64_t rejected = 0;      // the memory is too small for them alone
  std::int64_t over_ceiling = 0;  // their tenant's ceiling is too low for them alone
  // The prefix cache.
  std::int64_t prefix_queries = 0;  // prompt tokens of requests that queried it
  std::int64_t prefix_hits = 0;     // those found in it
  // Preemption.
  std::int64_t preempted = 0;        // requests that gave up their pages
  std::int64_t preempted_twice = 0;  // of these, before a token since their last preemption
  std::int64_t swapped_out = 0;      // preempted requests written to the swap file
  std::int64_t swapped_in = 0;       // restored from there
  std::int64_t swap_failed = 0;      // recomputed because the file could not be written or read
  std::string why_swap_failed;       // the newest reason
  std::uint64_t swap_bytes_out = 0;
  std::uint64_t swap_bytes_in = 0;
  double longest_swap = 0;  // longest time between two passes spent on swapping, seconds
};

}  // namespace kvasir

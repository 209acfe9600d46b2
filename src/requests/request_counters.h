// Totals of a queue since its start. Tests use them to assert that the event they are about took place.
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
  std::int64_t mixed_rows = 0;   // prompt rows of these
  int most_mixed_rows = 0;       // in one of these
  std::int64_t prepared = 0;     // turns of tasks that may draw within their pass
  std::size_t most_running = 0;  // tasks in a pass
  int most_rows = 0;             // of prompts in a pass
  double longest_mixed = 0;      // seconds of the longest pass of prompt rows and generated rows
  // Most seconds that one of these was expected to take, of those with more than kLeastPromptRows.
  double longest_expected = 0;
  // Tokens.
  std::int64_t prompt_tokens = 0;  // read or taken from the prefix cache
  std::int64_t generated_tokens = 0;
  std::int64_t recomputed_tokens = 0;  // that were run again after a preemption
  std::int64_t evicted_tokens = 0;     // dropped by policies, of samples that ended
  // Requests that ended for want of memory.
  std::int64_t rejected = 0;      // the memory does not suffice for them alone
  std::int64_t over_ceiling = 0;  // their tenant's ceiling is too low for them alone
  // The prefix cache.
  std::int64_t prefix_queries = 0;  // prompt tokens of requests that asked it
  std::int64_t prefix_hits = 0;     // of these, found there
  // Preemption.
  std::int64_t preempted = 0;        // requests that gave up their pages
  std::int64_t preempted_twice = 0;  // of these, before a token came since the last time
  std::int64_t swapped_out = 0;      // of `preempted`, those that have left for the swap file
  std::int64_t swapped_in = 0;       // and came back from there
  std::int64_t swap_failed = 0;      // and were recomputed, as the file could not be written or read
  std::string why_swap_failed;       // of the newest
  std::uint64_t swap_bytes_out = 0;
  std::uint64_t swap_bytes_in = 0;
  double longest_swap = 0;  // seconds between two passes that swapping took, at most
};

}  // namespace kvasir

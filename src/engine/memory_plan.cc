#include "engine/memory_plan.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/sequence_runner.h"

namespace kvasir {

std::uint64_t least_kv_bytes(const KvCacheShape& shape, std::int64_t tokens) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const auto columns = static_cast<std::uint64_t>(tokens / shape.page.slots);
  const std::uint64_t cost = KvCache::column_cost(shape);
  return columns > kMost / cost ? kMost : columns * cost;
}

KvMemory plan_kv_memory(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  std::int64_t tokens = request.tokens;
  std::int64_t prompt = std::min(request.prompt, tokens);
  const std::int64_t most = policy.bound() ? std::min(tokens, *policy.bound() + request.chunk) : tokens;
  const std::uint64_t columns = static_cast<std::uint64_t>(most) / static_cast<std::uint64_t>(shape.page.slots) + 3;
  auto cache = KvCache::create(shape, columns * KvCache::column_cost(shape), Backing::kNone);
  KVASIR_CHECK(cache.ok());
  KvSequence sequence = (*cache)->new_sequence();
  const std::unique_ptr<RetentionPolicy> state = policy.clone();
  std::vector<IdRange> hidden;
  std::int64_t seen_max = 0;
  std::uint64_t peak_columns = 0;
  // Once a policy prunes, where a pass begins on the grids of chunks and pages and how much is kept decide all that
  // follows: whole periods ahead repeat what was seen, and are left out.
  std::map<std::array<std::int64_t, 4>, std::int64_t> begun;
  for (std::int64_t done = 0; done < tokens;) {
    if (policy.bound() && !state->dropped().empty()) {
      const bool reading = done < prompt;
      const auto [before, fresh] = begun.try_emplace(
          {reading, reading ? done % request.chunk : 0, done % shape.page.slots, sequence.group().length()}, done);
      if (!fresh) {
        const std::int64_t period = done - before->second;
        const std::int64_t skipped = ((reading ? prompt : tokens) - done) / period * period;
        if (reading) prompt -= skipped;
        tokens -= skipped;
        if (done >= tokens) break;
      }
    }
    const int want = next_pass_rows(done, prompt, tokens, request.chunk);
    const PassPlan pass = plan_pass(*state, want);
    KVASIR_CHECK(sequence.group().append(pass.rows).ok());
    done += pass.rows;
    seen_max = std::max(seen_max, sequence.group().length());
    peak_columns = std::max(peak_columns, static_cast<std::uint64_t>(sequence.group().columns()));
    KVASIR_CHECK(sequence.group().drop(state->dropped(), state->realign()).ok());
  }
  const auto sequences = static_cast<std::uint64_t>(request.sequences);
  KvMemory memory;
  memory.page_bytes = shape.page.page_bytes();
  memory.pages = peak_columns * static_cast<std::uint64_t>(shape.lanes()) * sequences;
  memory.bytes = peak_columns * KvCache::column_cost(shape) * sequences;
  memory.table_bytes = memory.bytes - memory.pages * memory.page_bytes;
  memory.tokens_seen_max = seen_max;
  return memory;
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    std::uint64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const long pages = ::sysconf(_SC_AVPHYS_PAGES);
  const long size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

}  // namespace kvasir

#include "planning/memory_peak.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/check.h"
#include "sequence/sequence.h"

namespace kvasir {

std::uint64_t bytes_of_pages(const KvCacheShape& shape, std::uint64_t sealed, std::uint64_t open) {
  return sealed * (shape.page.bytes() + PagePool::kPageOverhead) +
         open * (shape.page.open().bytes() + PagePool::kPageOverhead);
}

namespace {

// Sets upper bounds of sealed and open pages.
MemoryPeak with_most_pages(const KvCacheShape& shape, const SequenceLayout& layout, MemoryPeak peak) {
  const auto columns = static_cast<std::int64_t>(peak.columns);
  peak.open = static_cast<std::uint64_t>(KvCache::most_open_columns(shape, layout, columns));
  peak.sealed = peak.columns - (shape.page.encoded() && columns > 0 ? 1 : 0);
  return peak;
}

void note_most(const KvCacheShape& shape, std::uint64_t sealed, std::uint64_t open, std::uint64_t columns,
               MemoryPeak* peak) {
  const std::uint64_t bytes = bytes_of_pages(shape, sealed, open);
  const std::uint64_t most = bytes_of_pages(shape, peak->sealed, peak->open);
  if (bytes < most) return;
  peak->columns_then = bytes == most ? std::max(peak->columns_then, columns) : columns;
  peak->sealed = sealed;
  peak->open = open;
}

// The memory within a chunk whose passes may end anywhere, by formula. After `n` tokens those columns are sealed whose
// newest token is before n - 1 - recent (PageTable::append). Tokens at multiples of the page's slots open columns.
class DividedChunk {
 public:
  // `table`: before the chunk.
  DividedChunk(const KvCacheShape& shape, const PageTable& table, int rows)
      : shape_(shape),
        slots_(shape.page.slots),
        recent_(shape.recent),
        begin_(table.next_index()),
        end_(table.next_index() + rows),
        columns_(table.columns().count()) {
    for (const PageTable::Frame& frame : table.frames())
      for (const PageEntry& entry : table.entries_of(frame)) {
        const PageTable::Column& column = table.columns()[entry.column];
        const TokenIndex last = column.first + slots_ - 1;
        if (!column.sealed && (lasts_.empty() || lasts_.back() != last)) lasts_.push_back(last);
      }
    KVASIR_CHECK(std::ssize(lasts_) == table.memory().open_columns());
  }

  // Adds the chunk's costliest moment to *peak. Apart from the open pages that a pass keeps, cost repeats from page to
  // page. So only the last moments count, and those that seal a column that was open before the chunk.
  void note(MemoryPeak* peak) const {
    note_until(end_, peak);
    for (const TokenIndex last : lasts_) note_until(last + 2 + recent_, peak);
    for (std::int64_t column = (end_ - 1) / slots_; column * slots_ + 1 > end_ - 2 * slots_ - recent_; --column) {
      note_until(column * slots_ + 1, peak);
      note_until(column * slots_ + 1 + recent_, peak);
    }
    const Counts last = count(end_);
    peak->least = std::max(peak->least, bytes_of_pages(shape_, last.sealed, last.open));
  }

 private:
  struct Counts {
    std::uint64_t sealed = 0;
    std::uint64_t open = 0;
  };

  std::int64_t opened(TokenIndex done) const { return (done + slots_ - 1) / slots_; }
  std::int64_t sealed(TokenIndex done) const { return std::max<std::int64_t>(done - 1 - recent_, 0) / slots_; }
  // Returns how many of the columns open before the chunk are sealed after `done` tokens.
  std::int64_t sealed_of_found(TokenIndex done) const {
    return std::ranges::lower_bound(lasts_, done - 1 - recent_) - lasts_.begin();
  }

  Counts count(TokenIndex done) const {
    const std::int64_t first = opened(begin_);  // first column of the chunk
    const std::int64_t open = std::ssize(lasts_) - sealed_of_found(done) +
                              std::max<std::int64_t>(opened(done) - std::max(first, sealed(done)), 0);
    return {static_cast<std::uint64_t>(columns_ + opened(done) - first - open), static_cast<std::uint64_t>(open)};
  }

  // Returns the columns open after `before` tokens that a pass from there to `done` seals.
  std::int64_t kept(TokenIndex before, TokenIndex done) const {
    const std::int64_t first = opened(begin_);
    return sealed_of_found(done) - sealed_of_found(before) +
           std::max<std::int64_t>(std::min(opened(before), sealed(done)) - std::max(first, sealed(before)), 0);
  }

  void note_until(TokenIndex done, MemoryPeak* peak) const {
    if (done <= begin_ || done > end_) return;
    std::int64_t most = kept(begin_, done);
    for (std::int64_t column = std::max(sealed(done) - 2, begin_ / slots_); column <= sealed(done) + 1; ++column)
      if (const TokenIndex before = column * slots_ + 1; before > begin_ && before < done)
        most = std::max(most, kept(before, done));
    const Counts counts = count(done);
    note_most(shape_, counts.sealed, counts.open + static_cast<std::uint64_t>(most), counts.sealed + counts.open, peak);
  }

  const KvCacheShape& shape_;
  const std::int64_t slots_;
  const std::int64_t recent_;
  const TokenIndex begin_;
  const TokenIndex end_;
  const std::int64_t columns_;
  std::vector<TokenIndex> lasts_;  // last token of each column open before the chunk, once full; ascending
};

// Appends a chunk to a table of one lane in one pass, and adds the moment within the pass to *peak.
void append_chunk(const KvCacheShape& shape, int rows, bool divided, PageTable* table, MemoryPeak* peak) {
  const bool encoded = shape.page.encoded();
  if (encoded && divided && rows > 1) DividedChunk(shape, *table, rows).note(peak);
  KVASIR_CHECK(table->append(rows).ok());
  peak->columns = std::max(peak->columns, static_cast<std::uint64_t>(table->columns().count()));
  if (!encoded) {
    peak->sealed = peak->columns;
    return;
  }
  const auto open = static_cast<std::uint64_t>(table->memory().open_columns());
  const std::uint64_t sealed = static_cast<std::uint64_t>(table->columns().count()) - open;
  const std::uint64_t with_kept = open + static_cast<std::uint64_t>(table->seals().kept_columns());
  note_most(shape, sealed, with_kept, static_cast<std::uint64_t>(table->columns().count()), peak);
  if (!divided || rows == 1) peak->least = std::max(peak->least, bytes_of_pages(shape, sealed, with_kept));
  table->end_pass();
}

// Returns the most columns of a table under a policy that decides by table. Which tokens it keeps is unknown, but not
// how many, nor how many dead slots remain between them (PageTable::apply).
MemoryPeak find_table_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  const std::int64_t slots = shape.page.slots;
  const auto columns = [&](std::int64_t tokens) { return (tokens + slots - 1) / slots; };
  const std::int64_t rows = request.prompt > 0 ? std::min<std::int64_t>(request.chunk, request.prompt) : 1;
  const std::int64_t seen = policy.bound() ? std::min(*policy.bound() - 1 + rows, request.tokens) : request.tokens;
  std::int64_t most = columns(request.tokens);  // a token is written once
  std::int64_t others = 0;
  std::int64_t in_others = 0;
  for (const std::int64_t capacity : policy.traits().run_capacities) {
    others += columns(capacity) + 1;
    in_others += capacity;
  }
  if (in_others > 0) {
    // Sinks and a ring, each with a page that may be partly filled at its end.
    const std::int64_t kept = policy.bound() ? *policy.bound() - 1 - in_others : request.tokens;
    most = std::min(most, columns(kept + rows) + 2);
    others = std::min(others, most * static_cast<std::int64_t>(policy.traits().run_capacities.size()));
  } else if (policy.bound()) {
    most = std::min(most, columns((*policy.bound() - 1) * 4 / 3 + rows));
  }
  return with_most_pages(shape, sequence_layout(policy), {static_cast<std::uint64_t>(most + others), seen});
}

// Returns the peak of a table that keeps all: only the last chunks and tokens can reach it.
MemoryPeak find_whole_peak(const KvCacheShape& shape, const MemoryRequest& request) {
  const std::int64_t slots = shape.page.slots;
  const std::int64_t tokens = request.tokens;
  const auto columns = static_cast<std::uint64_t>((tokens + slots - 1) / slots);
  if (!shape.page.encoded()) return {columns, tokens, columns, 0};
  const KvCacheShape lane{1, 1, shape.page, 0, shape.recent};
  auto cache = KvCache::create(lane, KvCache::cost(lane, {}, static_cast<std::int64_t>(columns) + 2));
  KVASIR_CHECK(cache.ok());
  KvSequence sequence = (*cache)->new_sequence();
  PageTable& table = sequence.only_table();
  const std::int64_t prompt = std::min(request.prompt, tokens);
  const std::int64_t last = 2 * (slots + shape.recent) + 2 * static_cast<std::int64_t>(request.chunk);
  MemoryPeak peak;
  peak.seen = tokens;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t skipped =
        std::max<std::int64_t>(std::min(prompt, tokens - last) / request.chunk * request.chunk, 0);
    std::int64_t rows = next_chunk_rows(done, prompt, tokens, request.chunk);
    if (done == 0 && skipped > 0) rows = skipped;
    if (done >= prompt && tokens - done > last) rows = tokens - last - done;
    append_chunk(shape, static_cast<int>(rows), request.divided, &table, &peak);
    done += rows;
  }
  return peak;
}

// Returns the most columns of a table that drops nothing but gives back columns beyond a sliding window, at the end of
// each chunk as PageTable::give_back does.
std::uint64_t most_windowed_columns(const KvCacheShape& shape, const RetentionPolicy& policy,
                                    const MemoryRequest& request) {
  const std::int64_t slots = shape.page.slots;
  const std::int64_t sinks = (policy.traits().sinks + slots - 1) / slots;  // columns
  const auto gone = [&](std::int64_t done) {
    return std::max<std::int64_t>(std::max<std::int64_t>(done - shape.window + 1, 0) / slots - sinks, 0);
  };
  std::int64_t most = 0;
  const auto read = [&](std::int64_t from, std::int64_t to, std::int64_t prompt) {
    // Once columns are given back, chunks repeat with the common period of chunks and pages.
    const std::int64_t period = prompt > 0 ? std::lcm<std::int64_t>(request.chunk, slots) : slots;
    const std::int64_t steady = shape.window + (sinks + 2) * slots + request.chunk;
    to = std::min(to, std::max(from, steady) + 2 * period);
    for (std::int64_t done = from; done < to;) {
      const int rows = next_chunk_rows(done, prompt, std::max(prompt, to), request.chunk);
      most = std::max(most, (done + rows + slots - 1) / slots - gone(done));
      done += rows;
    }
  };
  const std::int64_t prompt = std::min(request.prompt, request.tokens);
  read(0, prompt, prompt);
  read(prompt, request.tokens, 0);
  return static_cast<std::uint64_t>(most);
}

// Runs the table of a single lane under a bounded policy by ranges (all lanes of a sequence agree). Calls append(table,
// done, rows) to append a chunk behind `done` tokens.
//
// Once the hole has left the sinks' last page, all that follows depends on where a prune falls within chunk and page,
// and on how much is kept then. So after settled(table, done, hole), with the hole's first token, whole periods are
// skipped when such a state recurs.
template <class Append, class Settled>
void run_bounded(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request,
                 const Append& append, const Settled& settled) {
  const int slots = shape.page.slots;
  std::int64_t tokens = request.tokens;
  std::int64_t prompt = std::min(request.prompt, tokens);
  const KvCacheShape lane{1, 1, shape.page, shape.window, shape.recent};
  const std::int64_t most = std::min(tokens, *policy.bound() + request.chunk);
  auto cache = KvCache::create(lane, KvCache::cost(lane, {}, most / slots + 3));
  KVASIR_CHECK(cache.ok());
  KvSequence sequence = (*cache)->new_sequence(sequence_layout(policy));
  PageTable& table = sequence.only_table();
  const std::unique_ptr<RetentionPolicy> state = policy.clone();
  state->begin({});
  std::map<std::array<std::int64_t, 4>, std::int64_t> prunes;
  KeepPlan plan;
  TokenIndex hole = -1;
  for (std::int64_t done = 0; done < tokens;) {
    const int rows = chunk_rows(*state, next_chunk_rows(policy, done, prompt, tokens, request.chunk));
    const PolicyChunk chunk{table.next_index(), rows, done < prompt, std::max<std::int64_t>(prompt - done - rows, 0)};
    append(table, done, rows);
    done += rows;
    plan.clear();
    state->end_chunk(chunk, 0, plan);
    KVASIR_CHECK(table.apply(plan).ok());
    table.give_back();
    if (plan.empty()) continue;
    if (hole < 0) hole = plan.drop.front().begin;
    if (plan.drop.back().end < (hole + slots - 1) / slots * slots || !settled(table, done, hole)) continue;
    const bool reading = done < prompt;
    const auto [before, fresh] =
        prunes.try_emplace({reading, reading ? done % request.chunk : 0, done % slots, table.length()}, done);
    if (fresh) continue;
    const std::int64_t period = done - before->second;
    const std::int64_t skipped = ((reading ? prompt : tokens) - done) / period * period;
    if (reading) prompt -= skipped;
    tokens -= skipped;
  }
}

}  // namespace

MemoryPeak find_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  if (policy.traits().compacts) return find_table_peak(shape, policy, request);
  if (!policy.bound() && shape.window > 0)
    return with_most_pages(shape, sequence_layout(policy),
                           {most_windowed_columns(shape, policy, request), request.tokens});
  if (!policy.bound()) return find_whole_peak(shape, request);
  MemoryPeak peak;
  const auto append = [&](PageTable& table, std::int64_t, int rows) {
    append_chunk(shape, rows, request.divided, &table, &peak);
    peak.seen = std::max(peak.seen, table.length());
  };
  const auto settled = [&](const PageTable& table, std::int64_t done, TokenIndex hole) {
    // Encoded pages in front of the hole must be sealed, and a sliding window must have begun to give back.
    if (shape.page.encoded() && done < hole + 2 * shape.page.slots + shape.recent) return false;
    return shape.window == 0 || shape.window >= *policy.bound() + request.chunk || !table.tokens().given_back.empty();
  };
  run_bounded(shape, policy, request, append, settled);
  return peak;
}

JointPeak find_joint_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  const std::int64_t slots = shape.page.slots;
  const SequenceLayout layout = sequence_layout(policy);
  const std::int64_t widest = shape.widest_window();
  std::vector<KvCacheShape> groups = {shape.governed()};
  for (const WindowGroup& group : shape.windows) groups.push_back(shape.of(group));
  const auto layout_of = [&](std::size_t g) { return g == 0 ? layout : SequenceLayout{}; };
  JointPeak peak;
  std::vector<std::uint64_t> columns(groups.size()), most(groups.size());
  std::uint64_t arrays = 0;
  const auto note = [&] {
    std::uint64_t bytes = 0;
    bool grew = false;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      bytes += KvCache::page_cost(groups[g], layout_of(g), static_cast<std::int64_t>(columns[g]));
      grew = grew || columns[g] > most[g];
      most[g] = std::max(most[g], columns[g]);
    }
    if (grew) {
      arrays = 0;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        const auto count = static_cast<std::int64_t>(most[g]);
        arrays += KvCache::cost(groups[g], layout_of(g), count) - KvCache::page_cost(groups[g], layout_of(g), count);
      }
    }
    if (bytes + arrays < peak.bytes) return;
    peak.bytes = bytes + arrays;
    peak.arrays = arrays;
    peak.governed = columns[0];
    peak.windows.assign(columns.begin() + 1, columns.end());
  };
  // Counts the windows' columns during a chunk of `rows` tokens behind `done` others.
  const auto count_windows = [&](std::int64_t done, std::int64_t rows) {
    for (std::size_t g = 1; g < groups.size(); ++g)
      columns[g] = static_cast<std::uint64_t>((done + rows + slots - 1) / slots -
                                              std::max<std::int64_t>(done - groups[g].window + 1, 0) / slots);
  };
  const std::int64_t period = std::lcm<std::int64_t>(request.chunk, slots);
  if (!policy.bound()) {
    // The governed tables only grow, so the peak is near the end of the prompt or of the text. Windows are full before.
    const auto read = [&](std::int64_t from, std::int64_t to, std::int64_t of_prompt) {
      const std::int64_t own_period = of_prompt > 0 ? period : slots;
      const std::int64_t steady = widest + 2 * own_period + 2 * slots;
      for (std::int64_t done = from; done < to;) {
        if (done > from + steady && to - done > steady) done += (to - done - steady) / own_period * own_period;
        const int rows = next_chunk_rows(done, of_prompt, to, request.chunk);
        columns[0] = static_cast<std::uint64_t>((done + rows + slots - 1) / slots);
        count_windows(done, rows);
        note();
        done += rows;
      }
    };
    const std::int64_t prompt = std::min(request.prompt, request.tokens);
    read(0, prompt, prompt);
    read(prompt, request.tokens, 0);
    return peak;
  }
  const auto append = [&](PageTable& table, std::int64_t done, int rows) {
    KVASIR_CHECK(table.append(rows).ok());
    columns[0] = static_cast<std::uint64_t>(table.columns().count());
    count_windows(done, rows);
    note();
  };
  const auto settled = [&](const PageTable&, std::int64_t done, TokenIndex) { return done >= widest + period; };
  run_bounded(groups.front(), policy, request, append, settled);
  return peak;
}

}  // namespace kvasir

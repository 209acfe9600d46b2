#include "planning/memory_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "offload/follower_plan.h"
#include "retention/registry.h"
#include "sequence/sequence.h"

namespace kvasir {

namespace {

constexpr std::uint64_t kMostBytes = std::numeric_limits<std::uint64_t>::max();

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

std::uint64_t saturating_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

std::uint64_t bytes_of_columns(const KvCacheShape& shape, std::uint64_t columns) {
  const std::uint64_t pages =
      static_cast<std::uint64_t>(shape.lanes()) * (shape.page.bytes() + PagePool::kPageOverhead);
  return columns > kMostBytes / pages ? kMostBytes : columns * pages;
}

}  // namespace

std::uint64_t least_kv_bytes(const KvCacheShape& shape, std::int64_t tokens) {
  std::uint64_t bytes = 0;
  for (const WindowGroup& group : shape.windows) bytes = saturating_sum(bytes, least_kv_bytes(shape.of(group), tokens));
  if (shape.window > 0) tokens = std::min(tokens, shape.window);
  const std::uint64_t governed = bytes_of_columns(shape, static_cast<std::uint64_t>(tokens / shape.page.slots));
  return saturating_sum(governed, bytes);
}

std::uint64_t least_kv_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens) {
  KvCacheShape held = shape;
  if (const FollowsHeads* heads = policy.follows_heads()) held.kv_heads = heads->bounds(shape.kv_heads, 1).leaders;
  return least_kv_bytes(held, tokens);
}

bool keeps_all(const RetentionPolicy& policy, const KvCacheShape& shape) {
  return policy.follows_heads() == nullptr && !policy.bound() && !policy.traits().compacts && shape.window == 0 &&
         shape.windows.empty();
}

namespace {

struct Peak {
  std::uint64_t columns = 0;
  std::int64_t seen = 0;  // by one forward pass
  // Columns whose pages are encoded, and sets of open pages, at the moment when they take most bytes. Of a cache whose
  // pages are not encoded, all are among the first.
  std::uint64_t sealed = 0;
  std::uint64_t open = 0;
  std::uint64_t columns_then = 0;  // of the table at that moment
  std::uint64_t least = 0;         // bytes of a lane's pages at the peak, however chunks are divided into passes
};

// With a bound on what there can be of either kind.
Peak with_most_pages(const KvCacheShape& shape, const SequenceLayout& layout, Peak peak) {
  const auto columns = static_cast<std::int64_t>(peak.columns);
  peak.open = static_cast<std::uint64_t>(KvCache::most_open_columns(shape, layout, columns));
  peak.sealed = peak.columns - (shape.page.encoded() && columns > 0 ? 1 : 0);
  return peak;
}

// Bytes of a lane's pages.
std::uint64_t bytes_of_pages(const KvCacheShape& shape, std::uint64_t sealed, std::uint64_t open) {
  return sealed * (shape.page.bytes() + PagePool::kPageOverhead) +
         open * (shape.page.open().bytes() + PagePool::kPageOverhead);
}

void note_most(const KvCacheShape& shape, std::uint64_t sealed, std::uint64_t open, std::uint64_t columns, Peak* peak) {
  const std::uint64_t bytes = bytes_of_pages(shape, sealed, open);
  const std::uint64_t most = bytes_of_pages(shape, peak->sealed, peak->open);
  if (bytes < most) return;
  peak->columns_then = bytes == most ? std::max(peak->columns_then, columns) : columns;
  peak->sealed = sealed;
  peak->open = open;
}

// The moments of a chunk, of which the passes may end anywhere, by formula. Tokens before `n` seal the columns of which
// the newest token is before n - 1 - recent (PageTable::append); columns are opened by the tokens of multiples of their
// slots.
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

  // Takes its costliest moment into account. Without the open pages that a pass keeps, it is worth as much in the next
  // page. So only the last moments count, and those that seal what the chunk found open.
  void note(Peak* peak) const {
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
  // Of the columns that the chunk found open.
  std::int64_t sealed_of_found(TokenIndex done) const {
    return std::ranges::lower_bound(lasts_, done - 1 - recent_) - lasts_.begin();
  }

  Counts count(TokenIndex done) const {
    const std::int64_t first = opened(begin_);  // column of the chunk
    const std::int64_t open = std::ssize(lasts_) - sealed_of_found(done) +
                              std::max<std::int64_t>(opened(done) - std::max(first, sealed(done)), 0);
    return {static_cast<std::uint64_t>(columns_ + opened(done) - first - open), static_cast<std::uint64_t>(open)};
  }

  // Columns that were open after `before` tokens, and which a pass from there to `done` seals.
  std::int64_t kept(TokenIndex before, TokenIndex done) const {
    const std::int64_t first = opened(begin_);
    return sealed_of_found(done) - sealed_of_found(before) +
           std::max<std::int64_t>(std::min(opened(before), sealed(done)) - std::max(first, sealed(before)), 0);
  }

  void note_until(TokenIndex done, Peak* peak) const {
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
  std::vector<TokenIndex> lasts_;  // newest tokens, once they are full, of the columns that are open before; ascending
};

// Appends the rows of a chunk to a table of one lane, in one pass, and takes it into account in the midst of it.
void append_chunk(const KvCacheShape& shape, int rows, bool divided, PageTable* table, Peak* peak) {
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

// The most columns that a table can come to under a policy that decides by table: what it keeps is its own affair, but
// not how much, nor how many dead slots are left between (PageTable::apply).
Peak find_table_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
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
    // Sinks and a ring, each with a page that is not full at its end.
    const std::int64_t kept = policy.bound() ? *policy.bound() - 1 - in_others : request.tokens;
    most = std::min(most, columns(kept + rows) + 2);
    others = std::min(others, most * static_cast<std::int64_t>(policy.traits().run_capacities.size()));
  } else if (policy.bound()) {
    most = std::min(most, columns((*policy.bound() - 1) * 4 / 3 + rows));
  }
  return with_most_pages(shape, sequence_layout(policy), {static_cast<std::uint64_t>(most + others), seen});
}

// Of a table that keeps all: only the last chunks and tokens can be its peak.
Peak find_whole_peak(const KvCacheShape& shape, const MemoryRequest& request) {
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
  Peak peak;
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

// The most columns of a table that drops nothing, but gives back what is beyond a sliding window: at the end of each
// chunk, as PageTable::give_back does.
std::uint64_t most_windowed_columns(const KvCacheShape& shape, const RetentionPolicy& policy,
                                    const MemoryRequest& request) {
  const std::int64_t slots = shape.page.slots;
  const std::int64_t sinks = (policy.traits().sinks + slots - 1) / slots;  // columns
  const auto gone = [&](std::int64_t done) {
    return std::max<std::int64_t>(std::max<std::int64_t>(done - shape.window + 1, 0) / slots - sinks, 0);
  };
  std::int64_t most = 0;
  const auto read = [&](std::int64_t from, std::int64_t to, std::int64_t prompt) {
    // Once columns are given back, chunks repeat themselves with the grids of chunks and pages.
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

// Runs the table of a single lane under a policy by ranges that has a bound: all lanes of a sequence agree. Calls
// append(table, done, rows), which appends a chunk, with `done` tokens behind it.
//
// Once the hole has left the sinks' last page, where a prune falls on the grids of chunks and pages and how much is
// then kept decide all that follows: whole periods ahead repeat what was seen, and are left out, from where
// settled(table, done, hole) holds. hole: its first token.
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

Peak find_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  if (policy.traits().compacts) return find_table_peak(shape, policy, request);
  if (!policy.bound() && shape.window > 0)
    return with_most_pages(shape, sequence_layout(policy),
                           {most_windowed_columns(shape, policy, request), request.tokens});
  if (!policy.bound()) return find_whole_peak(shape, request);
  Peak peak;
  const auto append = [&](PageTable& table, std::int64_t, int rows) {
    append_chunk(shape, rows, request.divided, &table, &peak);
    peak.seen = std::max(peak.seen, table.length());
  };
  const auto settled = [&](const PageTable& table, std::int64_t done, TokenIndex hole) {
    // The pages in front of the hole are sealed, where they are encoded; a sliding window has begun to give back.
    if (shape.page.encoded() && done < hole + 2 * shape.page.slots + shape.recent) return false;
    return shape.window == 0 || shape.window >= *policy.bound() + request.chunk || !table.tokens().given_back.empty();
  };
  run_bounded(shape, policy, request, append, settled);
  return peak;
}

// The columns of all groups at the moment when they take most bytes together, and the bytes of the arrays then: of
// policies whose columns depend on the number of tokens alone, with pages that are not encoded.
struct JointPeak {
  std::uint64_t governed = 0;
  std::vector<std::uint64_t> windows;  // [window groups]
  std::uint64_t bytes = 0;             // of one sequence: pages, their bookkeeping, arrays
  std::uint64_t arrays = 0;
};

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
  // `done` tokens are behind the chunk of `rows` more.
  const auto count_windows = [&](std::int64_t done, std::int64_t rows) {
    for (std::size_t g = 1; g < groups.size(); ++g)
      columns[g] = static_cast<std::uint64_t>((done + rows + slots - 1) / slots -
                                              std::max<std::int64_t>(done - groups[g].window + 1, 0) / slots);
  };
  const std::int64_t period = std::lcm<std::int64_t>(request.chunk, slots);
  if (!policy.bound()) {
    // The governed tables only grow: the peak is near the end of the prompt, or of the text. Windows are full before.
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

// Whether each hole may make a frame: lists with compact positions and one run.
bool splits_at_holes(const PolicyTraits& traits) {
  return traits.compacts && traits.run_capacities.empty() && traits.positions != PositionMode::kOriginal;
}

// The most frames of a page table.
int most_frames(const KvCacheShape& shape, const RetentionPolicy& policy) {
  const PolicyTraits& traits = policy.traits();
  // Sinks and what follows the hole.
  if (!traits.compacts) return traits.sinks > 0 ? 2 : 1;
  if (!traits.run_capacities.empty()) return static_cast<int>(traits.run_capacities.size()) + 2;
  if (!splits_at_holes(traits)) return 1;
  return shape.page.encoded() ? PageTableLayout::kMaxEncodedFrames : PageTableLayout::kMaxFrames;
}

// The same in a chunk of more than Sequence::kFewRows rows.
int most_chunk_frames(const KvCacheShape& shape, const RetentionPolicy& policy) {
  if (!splits_at_holes(policy.traits())) return most_frames(shape, policy);
  return shape.page.encoded() ? Sequence::kMostEncodedChunkFrames : Sequence::kMostChunkFrames;
}

// The most entries of a page table: one for each column, and one more where a frame begins within a column. Compaction
// keeps lists with compact positions to two per column, unless their pages are encoded.
std::int64_t most_entries(const KvCacheShape& shape, const RetentionPolicy& policy, std::uint64_t columns) {
  const auto count = static_cast<std::int64_t>(columns);
  if (splits_at_holes(policy.traits()) && !shape.page.encoded()) return 2 * count + 2;
  return count + most_frames(shape, policy);
}

// The most pages that `tokens` consecutive tokens touch.
std::uint64_t pages_touched(std::uint64_t tokens, std::uint64_t slots) {
  return tokens == 0 ? 0 : (tokens + slots - 2) / slots + 1;
}

// What describe_table writes for all tables of a sequence, at most.
std::uint64_t most_batch_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request,
                               std::uint64_t columns) {
  const PolicyTraits& traits = policy.traits();
  const auto most_rows =
      static_cast<std::uint64_t>(request.prompt > 0 ? std::min<std::int64_t>(request.chunk, request.prompt) : 1);
  const auto slots = static_cast<std::uint64_t>(shape.page.slots);
  const bool window = shape.window > 0;
  const bool hides = !traits.compacts && policy.bound() && most_rows > 1;
  const bool selects = policy.leaves_unread() != nullptr;
  const auto frames = static_cast<std::uint64_t>(most_frames(shape, policy));
  std::uint64_t masks = 0, queries = 0;
  const auto count = [&](std::uint64_t rows, std::uint64_t of_frames) {
    std::uint64_t entries = pages_touched(rows - 1, slots);  // of tokens that some rows come before
    // The ends of hidden ranges lie within as many tokens as there are rows (HidesRanges::hidden).
    if (hides) entries += pages_touched(rows, slots);
    // So does the edge of a window, except in front of sinks: what is hidden from later rows moves the sinks nearer to
    // them. A hole that left a frame behind may share a page with what comes after it.
    if (window && traits.compacts) entries += std::min(rows, pages_touched(rows, slots) + 2 * of_frames);
    if (window && !traits.compacts)
      entries += pages_touched(rows, slots) + (static_cast<std::uint64_t>(traits.sinks) + slots - 1) / slots;
    masks = std::max(masks, rows * entries * (window ? 2 : 1));
    queries = std::max(queries, rows * of_frames);
  };
  count(most_rows, static_cast<std::uint64_t>(most_chunk_frames(shape, policy)));
  count(std::min<std::uint64_t>(most_rows, Sequence::kFewRows), frames);
  // The one row of a pass that leaves tokens unread has a mask for each entry, and another of what it retains.
  if (selects) masks = std::max(masks, columns) + columns;
  const std::uint64_t blocks = (most_rows > 1 || selects ? 1 : 0) + (hides ? 1 : 0) + (window ? frames : 0);
  const std::uint64_t seals =
      shape.page.encoded()
          ? (most_rows / slots + static_cast<std::uint64_t>(shape.recent) / slots + 2) * sizeof(SealedColumn)
          : 0;
  const std::uint64_t table = sizeof(BatchTable) + frames * sizeof(BatchFrame) + blocks * sizeof(MaskBlock) +
                              (hides ? sizeof(HiddenBlock) : 0) + masks * sizeof(SlotMask) +
                              (queries + most_rows) * sizeof(Position) + most_rows * sizeof(WriteSlot) + seals;
  return static_cast<std::uint64_t>(shape.tables(traits.scope)) * table + most_rows * sizeof(std::int32_t) +
         sizeof(BatchSequence);
}

}  // namespace

namespace {

// Of one group.
KvMemory plan_group(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  const Peak peak = find_peak(shape, policy, request);
  const SequenceLayout layout = sequence_layout(policy);
  const auto sequences = static_cast<std::uint64_t>(request.sequences);
  KvMemory memory;
  const auto lanes = static_cast<std::uint64_t>(shape.lanes());
  const auto arrays_of = [&](std::uint64_t columns) {
    return KvCache::cost(shape, layout, static_cast<std::int64_t>(columns)) -
           KvCache::page_cost(shape, layout, static_cast<std::int64_t>(columns));
  };
  // Where pages are encoded, the plan of a table that is run knows both the most and the least; and the table may be
  // longer at the end than at the moment when its pages take most.
  memory.exact = !policy.traits().compacts && !policy.traits().demotion && policy.observes_masses() == nullptr &&
                 !(shape.page.encoded() && shape.window > 0 && !policy.bound()) &&
                 (!shape.page.encoded() || (peak.least == bytes_of_pages(shape, peak.sealed, peak.open) &&
                                            arrays_of(peak.columns_then) == arrays_of(peak.columns)));
  memory.page_bytes = shape.page.bytes();
  memory.pages = saturating_product(peak.sealed * lanes, sequences);
  const std::int64_t planned = std::min(request.tokens, kMostPlannedTokens);
  std::uint64_t away = 0;       // columns of a table that follows which never are in memory together with the others
  std::uint64_t following = 0;  // such tables
  if (policy.follows_heads() != nullptr && peak.columns > 0) {
    const FollowerMemory followers =
        plan_followers(shape, policy, planned, std::min(request.prompt, planned), request.chunk);
    following = static_cast<std::uint64_t>(followers.tables);
    away = peak.columns - std::min(peak.columns, static_cast<std::uint64_t>(followers.own_columns));
    memory.pages = saturating_product(peak.columns * lanes - away * following, sequences);
    memory.offload_bytes = saturating_product(followers.bytes, sequences);
    memory.offload_file_bytes = saturating_product(followers.file_bytes, sequences);
    memory.offload_buffer_bytes = followers.buffer_bytes;
  }
  memory.open_page_bytes = shape.page.encoded() ? shape.page.open().bytes() : 0;
  memory.open_pages = saturating_product(peak.open * lanes, sequences);
  const std::uint64_t page_bytes = saturating_sum(saturating_product(memory.pages, memory.page_bytes),
                                                  saturating_product(memory.open_pages, memory.open_page_bytes));
  std::uint64_t arrays = saturating_product(arrays_of(peak.columns), sequences);
  if (away > 0)
    arrays = saturating_product(
        arrays_of(peak.columns) / lanes * (lanes - following) + arrays_of(peak.columns - away) / lanes * following,
        sequences);
  memory.table_bytes =
      saturating_sum(arrays, saturating_product(memory.pages + memory.open_pages, PagePool::kPageOverhead));
  memory.bytes =
      bytes_of_columns(shape, peak.columns) == kMostBytes ? kMostBytes : saturating_sum(page_bytes, memory.table_bytes);
  memory.bytes = saturating_sum(memory.bytes, memory.offload_bytes);
  memory.tokens_seen_max = peak.seen;
  memory.frames_max = most_frames(shape, policy);
  memory.chunk_frames_max = most_chunk_frames(shape, policy);
  memory.entries_max = most_entries(shape, policy, peak.columns);
  // Query heads do not matter to what is stored.
  const TableLayout tables{.layers = layout.scope == PolicyScope::kSequence ? 1 : shape.layers,
                           .per_layer = layout.scope == PolicyScope::kHead ? shape.kv_heads : 1};
  memory.policy_bytes = saturating_product(
      policy.most_state_bytes(tables, std::min(request.tokens, kMostPlannedTokens), request.chunk), sequences);
  if (const auto selector = new_selector(policy, shape)) {
    const std::uint64_t bounds = selector->bytes_for(std::min(request.tokens, kMostPlannedTokens));
    memory.policy_bytes = saturating_sum(memory.policy_bytes, saturating_product(bounds, sequences));
  }
  memory.bytes = saturating_sum(memory.bytes, memory.policy_bytes);
  const std::uint64_t demoted =
      SequenceDemotion::most_bytes(policy, shape, std::min(request.tokens, kMostPlannedTokens));
  memory.demoted_bytes = saturating_product(demoted, sequences);
  memory.bytes = saturating_sum(memory.bytes, memory.demoted_bytes);
  memory.batch_bytes = saturating_product(most_batch_bytes(shape, policy, request, peak.columns), sequences);
  return memory;
}

// Adds the groups that keep windows of their own: what each takes at most, or, where the number of tokens alone decides
// all, what is taken when all groups together take most.
void add_windows(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request,
                 KvMemory* memory) {
  const std::unique_ptr<RetentionPolicy> full = std::move(*make_policy(PolicySpec::named("full")));
  for (const WindowGroup& group : shape.windows) {
    const KvMemory window = plan_group(shape.of(group), *full, request);
    memory->windows.push_back(
        {window.pages, window.page_bytes, window.open_pages, window.open_page_bytes, window.entries_max});
    memory->exact = memory->exact && window.exact;
    memory->table_bytes = saturating_sum(memory->table_bytes, window.table_bytes);
    memory->bytes = saturating_sum(memory->bytes, window.bytes);
    memory->batch_bytes = saturating_sum(memory->batch_bytes, window.batch_bytes);
  }
  if (!memory->exact || memory->bytes == kMostBytes) return;
  const JointPeak peak = find_joint_peak(shape, policy, request);
  const auto sequences = static_cast<std::uint64_t>(request.sequences);
  std::uint64_t pages = memory->pages = peak.governed * static_cast<std::uint64_t>(shape.lanes()) * sequences;
  for (std::size_t w = 0; w < shape.windows.size(); ++w) {
    const auto lanes = static_cast<std::uint64_t>(shape.of(shape.windows[w]).lanes());
    pages += memory->windows[w].pages = peak.windows[w] * lanes * sequences;
  }
  memory->table_bytes = peak.arrays * sequences + pages * PagePool::kPageOverhead;
  memory->bytes = peak.bytes * sequences + memory->policy_bytes;
}

}  // namespace

KvMemory plan_kv_memory(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& wanted) {
  MemoryRequest request = wanted;
  request.chunk = prompt_chunk(policy, wanted.chunk);
  KvMemory memory = plan_group(shape.governed(), policy, request);
  if (!shape.windows.empty()) add_windows(shape, policy, request, &memory);
  return memory;
}

int mean_frames(const KvMemory& memory, int rows, int sequences) {
  const std::int64_t few = std::min<std::int64_t>(rows, std::int64_t{sequences} * Sequence::kFewRows);
  return static_cast<int>((few * memory.frames_max + (rows - few) * memory.chunk_frames_max + rows - 1) / rows);
}

Backend::WorkspaceRequest plan_workspace(const KvCacheShape& shape, const RetentionPolicy& policy,
                                         const KvMemory& memory, int rows, int sequences) {
  const PolicyTraits& traits = policy.traits();
  Backend::WorkspaceRequest work;
  work.rows = std::max(rows, sequences);
  work.logits = sequences;
  work.sequences = sequences;
  work.slots = shape.page.slots;
  Backend::WorkspaceRequest::Tables& governed = work.tables.front();
  governed.layer = shape.first_layer(0);
  governed.frames = mean_frames(memory, work.rows, sequences);
  governed.all = shape.tables(traits.scope);
  governed.of_layer = traits.scope == PolicyScope::kSequence ? 1 : governed.all / shape.layers;
  governed.entries = memory.entries_max;
  governed.gaps = traits.compacts;
  if (shape.page.encoded()) governed.staged_page_bytes = shape.page.open().bytes();
  governed.reductions = static_cast<int>(reductions_of(policy).size());
  governed.recalls = traits.demotion.has_value();
  governed.selected_rows = policy.ranks_chunks() != nullptr ? 1 : 0;
  governed.observed_rows = governed.reductions > 0 ? work.rows : 0;
  for (std::size_t w = 0; w < shape.windows.size(); ++w) {
    Backend::WorkspaceRequest::Tables window;
    window.layer = shape.first_layer(static_cast<int>(w) + 1);
    window.entries = memory.windows[w].entries_max;
    if (shape.page.encoded()) window.staged_page_bytes = shape.of(shape.windows[w]).page.open().bytes();
    work.tables.push_back(window);
  }
  return work;
}

}  // namespace kvasir

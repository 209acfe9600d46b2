#include "planning/memory_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "offload/follower_plan.h"
#include "planning/memory_peak.h"
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
  if (const FollowsHeads* heads = policy.as<FollowsHeads>()) held.kv_heads = heads->bounds(shape.kv_heads, 1).leaders;
  return least_kv_bytes(held, tokens);
}

bool keeps_all(const RetentionPolicy& policy, const KvCacheShape& shape) {
  return policy.as<FollowsHeads>() == nullptr && !policy.bound() && !policy.traits().compacts && shape.window == 0 &&
         shape.windows.empty();
}

std::uint64_t shared_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens) {
  return keeps_all(policy, shape) ? least_kv_bytes(shape, tokens) : 0;
}

namespace {

// Returns whether each hole may make a frame: for lists with compact positions and one run.
bool splits_at_holes(const PolicyTraits& traits) {
  return traits.compacts && traits.run_capacities.empty() && traits.positions != PositionMode::kOriginal;
}

// Returns the most frames of a page table.
int most_frames(const KvCacheShape& shape, const RetentionPolicy& policy) {
  const PolicyTraits& traits = policy.traits();
  // One for the sinks, one for what follows the hole.
  if (!traits.compacts) return traits.sinks > 0 ? 2 : 1;
  if (!traits.run_capacities.empty()) return static_cast<int>(traits.run_capacities.size()) + 2;
  if (!splits_at_holes(traits)) return 1;
  return shape.page.encoded() ? PageTableLayout::kMaxEncodedFrames : PageTableLayout::kMaxFrames;
}

// As most_frames, in a chunk of more than Sequence::kFewRows rows.
int most_chunk_frames(const KvCacheShape& shape, const RetentionPolicy& policy) {
  if (!splits_at_holes(policy.traits())) return most_frames(shape, policy);
  return shape.page.encoded() ? Sequence::kMostEncodedChunkFrames : Sequence::kMostChunkFrames;
}

// Returns the most entries of a page table: one per column, and one more where a frame begins within a column.
// Compaction keeps lists with compact positions to two per column, unless their pages are encoded.
std::int64_t most_entries(const KvCacheShape& shape, const RetentionPolicy& policy, std::uint64_t columns) {
  const auto count = static_cast<std::int64_t>(columns);
  if (splits_at_holes(policy.traits()) && !shape.page.encoded()) return 2 * count + 2;
  return count + most_frames(shape, policy);
}

// Returns the most pages that `tokens` consecutive tokens touch.
std::uint64_t pages_touched(std::uint64_t tokens, std::uint64_t slots) {
  return tokens == 0 ? 0 : (tokens + slots - 2) / slots + 1;
}

// Returns the most bytes that describe_table writes for all tables of a sequence.
std::uint64_t most_batch_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request,
                               std::uint64_t columns) {
  const PolicyTraits& traits = policy.traits();
  const auto most_rows =
      static_cast<std::uint64_t>(request.prompt > 0 ? std::min<std::int64_t>(request.chunk, request.prompt) : 1);
  const auto slots = static_cast<std::uint64_t>(shape.page.slots);
  const bool window = shape.window > 0;
  const bool hides = !traits.compacts && policy.bound() && most_rows > 1;
  const bool selects = policy.as<LeavesUnread>() != nullptr;
  const auto frames = static_cast<std::uint64_t>(most_frames(shape, policy));
  std::uint64_t masks = 0, queries = 0;
  const auto count = [&](std::uint64_t rows, std::uint64_t of_frames) {
    std::uint64_t entries = pages_touched(rows - 1, slots);  // of tokens that only some rows come after
    // The ends of hidden ranges lie within as many tokens as there are rows (HidesRanges::hidden).
    if (hides) entries += pages_touched(rows, slots);
    // So does a window's edge, except before sinks: ranges hidden from later rows move the sinks nearer to these. A
    // hole that left a frame behind may share a page with what follows it.
    if (window && traits.compacts) entries += std::min(rows, pages_touched(rows, slots) + 2 * of_frames);
    if (window && !traits.compacts)
      entries += pages_touched(rows, slots) + (static_cast<std::uint64_t>(traits.sinks) + slots - 1) / slots;
    masks = std::max(masks, rows * entries * (window ? 2 : 1));
    queries = std::max(queries, rows * of_frames);
  };
  count(most_rows, static_cast<std::uint64_t>(most_chunk_frames(shape, policy)));
  count(std::min<std::uint64_t>(most_rows, Sequence::kFewRows), frames);
  // If a pass of one row leaves tokens unread, it has a mask for each entry, and another of what it retains.
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

// Plans one group.
KvMemory plan_group(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  const MemoryPeak peak = find_peak(shape, policy, request);
  const SequenceLayout layout = sequence_layout(policy);
  const auto sequences = static_cast<std::uint64_t>(request.sequences);
  KvMemory memory;
  const auto lanes = static_cast<std::uint64_t>(shape.lanes());
  const auto arrays_of = [&](std::uint64_t columns) {
    return KvCache::cost(shape, layout, static_cast<std::int64_t>(columns)) -
           KvCache::page_cost(shape, layout, static_cast<std::int64_t>(columns));
  };
  // With encoded pages, a table that was run gives both the most and the least. The table may be longer at the end than
  // when its pages take most.
  memory.exact = !policy.traits().compacts && !policy.traits().demotion && policy.as<ObservesMasses>() == nullptr &&
                 policy.as<ReadsKv>() == nullptr && policy.as<ReadsHeldKv>() == nullptr &&
                 policy.as<SumsQueries>() == nullptr &&
                 !(shape.page.encoded() && shape.window > 0 && !policy.bound()) &&
                 (!shape.page.encoded() || (peak.least == bytes_of_pages(shape, peak.sealed, peak.open) &&
                                            arrays_of(peak.columns_then) == arrays_of(peak.columns)));
  memory.page_bytes = shape.page.bytes();
  memory.pages = saturating_product(peak.sealed * lanes, sequences);
  const std::int64_t planned = std::min(request.tokens, kMostPlannedTokens);
  std::uint64_t away = 0;       // columns of a follower's table that are never in memory together with its others
  std::uint64_t following = 0;  // followers' tables
  if (policy.as<FollowsHeads>() != nullptr && peak.columns > 0) {
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
  const TableLayout tables = table_layout(shape, layout.scope);
  const int rows = request.prompt > 0 ? static_cast<int>(std::min<std::int64_t>(request.chunk, request.prompt)) : 1;
  memory.policy_bytes = saturating_product(
      policy.most_state_bytes(tables, std::min(request.tokens, kMostPlannedTokens), request.chunk) +
          PolicyListener::most_bytes(policy, shape, std::min(request.tokens, kMostPlannedTokens), rows) +
          SlotBiases::most_bytes(policy, shape, memory.entries_max),
      sequences);
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

// Adds the window groups: the most that each takes; or, if the number of tokens alone decides, their share when all
// groups together take most.
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

// Returns what the groups take together, without states.
KvMemory plan_groups(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request) {
  KvMemory memory = plan_group(shape.governed(), policy, request);
  if (!shape.windows.empty()) add_windows(shape, policy, request, &memory);
  return memory;
}

// Adds what the moment takes beyond that at which a prompt is held whole and a fork repeats a part of it
// (Sequence::plan_part).
void add_repetition(const KvCacheShape& shape, const RetentionPolicy& policy, MemoryRequest request, KvMemory* memory) {
  const RepeatsText* repeats = policy.as<RepeatsText>();
  const std::int64_t prompt = std::min({request.tokens, request.prompt, kMostPlannedTokens});
  if (repeats == nullptr || prompt == 0) return;
  request.tokens = request.prompt = prompt;
  constexpr std::int64_t kMostInstruction = 80;  // no token has less than a byte
  const std::int64_t slots = shape.page.slots, whole = prompt / slots;
  const std::int64_t end = prompt + repeats->most_part(prompt) + kMostInstruction;
  const std::int64_t columns = (end + slots - 1) / slots;
  const SequenceLayout layout = sequence_layout(policy);
  const KvMemory then = plan_groups(shape, policy, request);
  const auto sequences = static_cast<std::uint64_t>(request.sequences);
  // The fork shares the pages that are full and sealed, and has tables, states, and a policy of its own.
  const std::int64_t shared = std::max<std::int64_t>(whole - KvCache::most_open_columns(shape, layout, whole), 0);
  const std::uint64_t fork =
      KvCache::cost(shape, layout, columns) - bytes_of_columns(shape, static_cast<std::uint64_t>(shared));
  const std::uint64_t state = policy.most_state_bytes(table_layout(shape, layout.scope), end, request.chunk) +
                              PolicyListener::most_bytes(policy, shape, end, request.chunk);
  const std::uint64_t bytes = saturating_sum(then.bytes, saturating_product(fork + state, sequences));
  if (bytes > memory->bytes) {
    memory->policy_bytes = saturating_sum(memory->policy_bytes, bytes - memory->bytes);
    memory->bytes = bytes;
  }
  memory->entries_max = std::max(memory->entries_max, most_entries(shape, policy, static_cast<std::uint64_t>(columns)));
}

}  // namespace

KvMemory plan_kv_memory(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& wanted) {
  MemoryRequest request = wanted;
  request.chunk = prompt_chunk(policy, wanted.chunk);
  KvMemory memory = plan_groups(shape, policy, request);
  add_repetition(shape, policy, request, &memory);
  if (request.tokens > 0)
    memory.state_bytes = saturating_product(shape.state_bytes(), static_cast<std::uint64_t>(request.sequences));
  memory.bytes = saturating_sum(memory.bytes, memory.state_bytes);
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
  governed.selected_rows = policy.as<RanksSegments>() != nullptr ? 1 : 0;
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

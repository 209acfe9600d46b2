#include "kv/kv_cache.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

KvCacheShape KvCacheShape::with(const KvCodec& codec) const {
  KvCacheShape shape = *this;
  shape.page.key = codec.key;
  shape.page.value = codec.value;
  shape.page.hadamard_keys = codec.hadamard_keys;
  shape.page.hadamard_values = codec.hadamard_values;
  shape.recent = codec.recent;
  shape.long_rotation = codec.long_rotation;
  if (codec.long_rotation == long_rotation) return shape;
  KVASIR_CHECK(long_shift > 0);
  if (rotations.empty())
    shape.rotations.assign(static_cast<std::size_t>(layers), static_cast<std::uint8_t>(page.rotation));
  for (std::uint8_t& rotation : shape.rotations)
    if (rotation != unrotated) rotation = static_cast<std::uint8_t>(rotation + (long_rotation ? -1 : 1) * long_shift);
  return shape;
}

KvCacheShape KvCacheShape::governed() const {
  KvCacheShape shape = *this;
  shape.windows.clear();
  shape.states.clear();
  shape.group_of_layer.clear();
  shape.lanes_of.clear();
  shape.rotations.clear();
  return shape;
}

KvCacheShape KvCacheShape::of(const WindowGroup& group) const {
  KvCacheShape shape = governed();
  shape.layers = group.layers;
  shape.kv_heads = group.kv_heads;
  shape.page.head_dim = group.head_dim;
  shape.page.rotation = group.rotation;
  shape.window = group.window;
  return shape;
}

int KvCacheShape::model_layer(int governed) const {
  if (group_of_layer.empty()) return governed;
  for (std::size_t layer = 0; layer < group_of_layer.size(); ++layer)
    if (group_of_layer[layer] == 0 && (lanes_of.empty() || lanes_of[layer] < 0) && governed-- == 0)
      return static_cast<int>(layer);
  KVASIR_CHECK(false);
}

Position KvCacheShape::widest_window() const {
  Position widest = 0;
  for (const WindowGroup& group : windows) widest = std::max(widest, group.window);
  return widest;
}

int KvCacheShape::all_lanes() const {
  int all = lanes();
  for (const WindowGroup& group : windows) all += group.layers * group.kv_heads;
  return all;
}

std::uint64_t KvCacheShape::state_bytes() const {
  std::uint64_t all = 0;
  for (const StateGroup& group : states) all += static_cast<std::uint64_t>(group.layers) * group.bytes;
  return all;
}

namespace {

// Where the lanes and states of the model's layers are. Tables of this scope are followed by one for each window group.
std::vector<LayerLanes> layer_lanes(const KvCacheShape& shape, PolicyScope scope) {
  std::vector<std::uint8_t> group_of_layer = shape.group_of_layer;
  if (group_of_layer.empty()) group_of_layer.assign(static_cast<std::size_t>(shape.layers), 0);
  std::vector<int> seen(1 + shape.windows.size() + shape.states.size());  // layers of each group so far
  std::uint64_t state = 0;
  std::vector<LayerLanes> lanes;
  for (std::size_t l = 0; l < group_of_layer.size(); ++l) {
    if (!shape.lanes_of.empty() && shape.lanes_of[l] >= 0) {
      lanes.push_back(lanes[static_cast<std::size_t>(shape.lanes_of[l])]);
      lanes.back().observed_as = -1;
      continue;
    }
    const std::uint8_t group = group_of_layer[l];
    const int number = seen[group]++;
    if (group > shape.windows.size()) {
      lanes.push_back({.tables = 0, .state = state});
      state += shape.states[group - 1u - shape.windows.size()].bytes;
    } else if (group > 0) {
      const WindowGroup& window = shape.windows[group - 1u];
      lanes.push_back({.first_table = shape.tables(scope) + group - 1, .first_lane = number * window.kv_heads});
    } else if (scope == PolicyScope::kSequence) {
      lanes.push_back({.first_lane = number * shape.kv_heads, .observed_as = number});
    } else {
      const int tables = scope == PolicyScope::kHead ? shape.kv_heads : 1;
      lanes.push_back({.first_table = number * tables, .tables = tables, .observed_as = number});
    }
  }
  return lanes;
}

// `form`: names the kind of pages in the message; empty if there is only one kind.
Status check_holds_a_column(const KvCacheShape& shape, std::uint64_t budget_bytes, const std::string& form) {
  const std::uint64_t least = KvCache::cost(shape, {}, 1);
  if (budget_bytes >= least) return {};
  return exhausted(
             "a KV memory of {} bytes is less than one{} page for each KV head of each layer with a cache ({} bytes); "
             "give it more",
             budget_bytes, form, least)
      .about({"kv_memory"});
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(const KvCacheShape& shape, std::uint64_t budget_bytes,
                                                 PageStore* store) {
  auto own = std::make_unique<MemoryBudget>(budget_bytes);
  MemoryBudget* const budget = own.get();
  return create(std::unique_ptr<KvCache>(new KvCache(shape, std::move(own), budget)), store);
}

Result<std::unique_ptr<KvCache>> KvCache::create(const KvCacheShape& shape, MemoryBudget* budget, PageStore* store) {
  return create(std::unique_ptr<KvCache>(new KvCache(shape, nullptr, budget)), store);
}

Result<std::unique_ptr<KvCache>> KvCache::create(std::unique_ptr<KvCache> cache, PageStore* store) {
  KVASIR_RETURN_IF_ERROR(check_holds_a_column(cache->shape_, cache->budget_->capacity(), ""));
  KVASIR_ASSIGN_OR_RETURN(cache->pool_, PagePool::create(cache->shape_.page, cache->budget_, store));
  KVASIR_RETURN_IF_ERROR(cache->allow(cache->shape_.codec()));
  return cache;
}

Status KvCache::allow(const KvCodec& codec) {
  if (allows(codec)) return {};
  const KvCacheShape shape = shape_.with(codec);
  KVASIR_RETURN_IF_ERROR(check_holds_a_column(shape, budget_->capacity(), " " + codec_name(codec)));
  KVASIR_ASSIGN_OR_RETURN(const PageClasses classes, pool_->classes_of(shape.page));
  Allowed allowed{codec, classes, {}, {}};
  for (const std::uint8_t rotation : shape.rotations)
    allowed.rotations.insert(allowed.rotations.end(), static_cast<std::size_t>(shape.kv_heads), rotation);
  for (const WindowGroup& group : shape_.windows) {
    KVASIR_ASSIGN_OR_RETURN(const PageClasses of_window, pool_->classes_of(shape.of(group).page));
    allowed.of_windows.push_back(of_window);
  }
  allowed_.push_back(std::move(allowed));
  if (shape_.long_shift == 0) return {};
  KvCodec other = codec;
  other.long_rotation = !codec.long_rotation;
  return allow(other);
}

PageClasses KvCache::classes(const KvCodec& codec) const {
  const auto allowed = find(codec);
  KVASIR_CHECK(allowed != allowed_.end());
  return allowed->classes;
}

std::vector<KvCodec> KvCache::codecs() const {
  std::vector<KvCodec> codecs;
  for (const Allowed& allowed : allowed_) codecs.push_back(allowed.codec);
  return codecs;
}

KvSequence KvCache::new_sequence(const SequenceLayout& layout) {
  PageTable::Layout of_table = layout.table;
  if (!of_table.lists) of_table.window = shape_.window;
  const KvCodec codec = layout.codec.value_or(shape_.codec());
  const auto allowed = find(codec);
  KVASIR_CHECK(allowed != allowed_.end());
  of_table.classes = allowed->classes;
  of_table.recent = codec.recent;
  KvSequence sequence(layout.scope, codec, shape_.tables(layout.scope), layer_lanes(shape_, layout.scope),
                      LayerStates(shape_.state_bytes(), pool_.get()));
  const int lanes = shape_.lanes_per_table(layout.scope);
  for (int table = 0; table < sequence.governed_; ++table) {
    if (!allowed->rotations.empty())
      of_table.rotations = std::span(allowed->rotations)
                               .subspan(static_cast<std::size_t>(table * lanes), static_cast<std::size_t>(lanes));
    sequence.tables_.emplace_back(lanes, pool_.get(), of_table);
  }
  for (std::size_t w = 0; w < shape_.windows.size(); ++w) {
    const WindowGroup& group = shape_.windows[w];
    PageTable::Layout of_window;
    of_window.window = group.window;
    of_window.classes = allowed->of_windows[w];
    of_window.recent = codec.recent;
    sequence.tables_.emplace_back(group.layers * group.kv_heads, pool_.get(), of_window);
  }
  return sequence;
}

Result<KvSequence> KvCache::fork(const KvSequence& sequence) {
  KvSequence fork(sequence.scope_, sequence.codec_, sequence.governed_, sequence.layers_,
                  LayerStates(shape_.state_bytes(), pool_.get()));
  for (const PageTable& table : sequence.tables_) {
    KVASIR_ASSIGN_OR_RETURN(PageTable copy, table.fork());
    fork.tables_.push_back(std::move(copy));
  }
  if (sequence.states().bytes() == 0) return fork;
  KVASIR_RETURN_IF_ERROR(fork.states_.take());
  std::ranges::copy(sequence.states().memory(), fork.states_.memory().data());
  return fork;
}

namespace {

// The sum of a figure over tables.
template <class Figure>
auto sum_over(std::span<const PageTable> tables, const Figure& figure) {
  auto sum = decltype(std::invoke(figure, tables.front()))();
  for (const PageTable& table : tables) sum += std::invoke(figure, table);
  return sum;
}

}  // namespace

std::int64_t KvSequence::longest() const {
  return std::ranges::max_element(governed(), {}, &PageTable::length)->length();
}

std::int64_t KvSequence::shortest() const {
  return std::ranges::min_element(governed(), {}, &PageTable::length)->length();
}

double KvSequence::mean_length() const {
  return static_cast<double>(sum_over(governed(), &PageTable::length)) / static_cast<double>(governed_);
}

double KvSequence::mean_stored() const {
  const auto stored = [](const PageTable& table) { return table.tokens().stored(); };
  return static_cast<double>(sum_over(governed(), stored)) / static_cast<double>(governed_);
}

void KvSequence::give_back(Groups groups) {
  const std::size_t first = groups == Groups::kAll ? 0 : static_cast<std::size_t>(governed_);
  for (PageTable& table : std::span(tables_).subspan(first)) table.give_back();
}

TokenIndex KvSequence::truncatable_from() const {
  TokenIndex most = states_.exist() ? next_index() : 0;  // a state is that of all tokens
  for (const PageTable& table : tables_) {
    const IndexRange given_back = table.tokens().given_back;
    if (given_back.empty()) continue;
    const Position window = table.layout().window;
    most = std::max(most, window > 0 ? given_back.end - 1 + window : table.next_index());
  }
  return most;
}

double dead_share(const KvSequence& sequence) {
  std::int64_t dead = 0, written = 0;
  for (int t = 0; t < sequence.governed_tables(); ++t) {
    dead += sequence.table(t).tokens().dead_slots();
    written += sequence.table(t).tokens().written;
  }
  return written > 0 ? static_cast<double>(dead) / static_cast<double>(written) : 0;
}

KvSequence::Room KvSequence::plan_append(int tokens, int of_chunk) const {
  Room room;
  for (const PageTable& table : tables_) {
    room.append += table.memory().plan_append(tokens, of_chunk).bytes;
    room.reserve += table.memory().sharing_reserve(tokens > 0);
  }
  if (tokens > 0) room.append += states_.untaken();
  return room;
}

std::uint64_t KvSequence::table_bytes() const {
  return sum_over(tables_, &PageTable::bytes);
}

std::uint64_t KvSequence::page_bytes() const {
  return sum_over(tables_, [](const PageTable& table) { return table.memory().page_bytes(); });
}

std::uint64_t KvSequence::own_page_bytes() const {
  return sum_over(tables_, [](const PageTable& table) { return table.memory().own_page_bytes(); });
}

TableColumns::Encodings encodings(const KvSequence& sequence) {
  TableColumns::Encodings all;
  for (int t = 0; t < sequence.tables(); ++t) {
    const PageTable& table = sequence.table(t);
    const TableColumns::Encodings of_table = table.columns().all_encodings();
    const auto lanes = static_cast<std::uint64_t>(table.pages().lanes());
    all.tokens += of_table.tokens * lanes;
    all.sum += of_table.sum * lanes;
    all.again += of_table.again * lanes;
    all.most = std::max(all.most, of_table.most);
  }
  return all;
}

Status KvSequence::append(int tokens, int of_chunk) {
  const Room room = plan_append(tokens, of_chunk);
  return append(tokens, of_chunk, room.append + room.reserve);
}

Status KvSequence::append_only(int tokens, int of_chunk) {
  return append(tokens, of_chunk, plan_append(tokens, of_chunk).append);
}

Status KvSequence::append(int tokens, int of_chunk, std::uint64_t needed) {
  if (const MemoryBudget& budget = tables_.front().pages().pool().budget(); needed > budget.available())
    return kv_memory_full(budget, needed);
  if (tokens > 0) KVASIR_RETURN_IF_ERROR(states_.take());
  for (PageTable& table : tables_) KVASIR_RETURN_IF_ERROR(table.append(tokens, of_chunk));
  return {};
}

int KvSequence::room_to_take_back(int tokens) const {
  if (states_.exist()) return 0;
  for (const PageTable& table : tables_) tokens = table.room_to_take_back(tokens);
  return tokens;
}

int KvSequence::room() const {
  int room = tables_.front().columns().slots();
  for (const PageTable& table : tables_) room = std::min(room, table.tokens().room(0));
  return room;
}

Status KvSequence::adopt(std::span<const PageId> pages) {
  KVASIR_CHECK(!states_.exist());
  std::size_t all = 0;
  for (const PageTable& table : tables_) all += static_cast<std::size_t>(table.pages().lanes());
  KVASIR_CHECK(pages.size() % all == 0);
  std::vector<PageId> of_table;
  std::size_t first_lane = 0;
  for (PageTable& table : tables_) {
    const auto lanes = static_cast<std::size_t>(table.pages().lanes());
    of_table.clear();
    for (std::size_t column = 0; column < pages.size(); column += all) {
      const std::span<const PageId> of_column = pages.subspan(column + first_lane, lanes);
      of_table.insert(of_table.end(), of_column.begin(), of_column.end());
    }
    KVASIR_RETURN_IF_ERROR(table.adopt(of_table));
    first_lane += lanes;
  }
  return {};
}

std::int64_t KvSequence::whole_columns() const {
  std::int64_t least = tables_.front().tokens().whole_columns();
  for (const PageTable& table : tables_) least = std::min(least, table.tokens().whole_columns());
  return least;
}

void KvSequence::add_pages_of_whole(std::int64_t column, std::vector<PageId>& pages) const {
  for (const PageTable& table : tables_) {
    const auto of_table = table.tokens().pages_of_whole(column);
    pages.insert(pages.end(), of_table.begin(), of_table.end());
  }
}

std::uint64_t KvCache::page_cost(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns) {
  const std::int64_t open = most_open_columns(shape, layout, columns);
  const std::int64_t sealed = shape.page.encoded() ? std::max<std::int64_t>(columns - 1, 0) : columns;
  const std::uint64_t pages = static_cast<std::uint64_t>(sealed) * (shape.page.bytes() + PagePool::kPageOverhead) +
                              static_cast<std::uint64_t>(open) * (shape.page.open().bytes() + PagePool::kPageOverhead);
  std::uint64_t bytes = static_cast<std::uint64_t>(shape.lanes()) * pages;
  for (const WindowGroup& group : shape.windows) bytes += page_cost(shape.of(group), {}, columns);
  return bytes;
}

std::uint64_t KvCache::cost(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns) {
  PageTable::Layout table = layout.table;
  table.recent = shape.recent;
  if (shape.page.encoded()) table.classes.open = PageClass{1};
  std::uint64_t bytes =
      page_cost(shape.governed(), layout, columns) +
      static_cast<std::uint64_t>(shape.tables(layout.scope)) *
          TableMemory::bytes_at(shape.lanes_per_table(layout.scope), shape.page.slots, table, columns);
  for (const WindowGroup& group : shape.windows) bytes += cost(shape.of(group), {}, columns);
  return bytes + shape.state_bytes();
}

std::int64_t KvCache::most_open_columns(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns) {
  if (!shape.page.encoded()) return 0;
  const std::int64_t slots = shape.page.slots;
  // Twice: columns open before the pass, and columns open after it.
  const std::int64_t of_texts = 2 * ((shape.recent + slots - 1) / slots + 1);
  const std::int64_t held = std::min<std::int64_t>(columns, of_texts + 2 * std::ssize(layout.table.run_capacities));
  // What compaction may write into fresh pages (TableMemory::sharing_reserve).
  const bool compacts = layout.table.lists && layout.table.run_capacities.empty() && shape.recent > 0;
  return held + (compacts && columns > 0 ? shape.recent / slots + 2 : 0);
}

void KvCache::check_invariants(std::span<const KvSequence* const> sequences, std::uint64_t others) const {
  pool_->check_invariants();
  PageCounts references;
  std::uint64_t tables = 0, states = 0;
  for (const KvSequence* sequence : sequences) {
    states += sequence->states().bytes();
    for (const PageTable& table : sequence->tables_) {
      table.check_invariants(references);
      tables += table.bytes();
    }
  }
  for (const auto& [page, count] : references) KVASIR_CHECK(count == pool_->references(page));
  KVASIR_CHECK(references.size() == pool_->in_use());
  KVASIR_CHECK(budget_->used() == pool_->charged() + tables + states + others);
}

}  // namespace kvasir

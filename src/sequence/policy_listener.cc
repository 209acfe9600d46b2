#include "sequence/policy_listener.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "backend/backend.h"
#include "base/check.h"

namespace kvasir {
namespace {

std::size_t floats_of_page(const KvCacheShape& shape) {
  return static_cast<std::size_t>(shape.page.slots) * static_cast<std::size_t>(shape.page.head_dim);
}

// Returns the bytes of the keys and values of one table, and of one page.
std::uint64_t kv_bytes(const ReadsKv& kv, const KvCacheShape& shape, PolicyScope scope, int rows) {
  const auto all = static_cast<std::uint64_t>(rows);
  const std::uint64_t floats =
      static_cast<std::uint64_t>(shape.lanes_per_table(scope)) * all * static_cast<std::uint64_t>(shape.page.head_dim);
  return (static_cast<std::uint64_t>(kv.wants_keys() + kv.wants_values()) * floats + floats_of_page(shape)) *
             sizeof(float) +
         static_cast<std::uint64_t>(shape.lanes_per_table(scope)) * all * sizeof(std::int64_t);
}

constexpr int kMostReaders = 4;  // limits the memory: each reader has its own

// Returns how many tables are read at once. Norms of projected values take all threads for one table.
int held_readers(const ReadsHeldKv& held, int tables, int threads) {
  return held.projects_values() ? 1 : std::min({tables, threads, kMostReaders});
}

// Returns the bytes that all readers take together on so many threads. Each takes a block (a page of each lane), norms
// of projected values, and what the policy allocates. `tokens`, `bound`: of the sequence.
std::uint64_t held_bytes(const ReadsHeldKv& held, const KvCacheShape& shape, PolicyScope scope, std::int64_t tokens,
                         std::optional<std::int64_t> bound, int rows, int threads) {
  const auto lanes = static_cast<std::uint64_t>(shape.lanes_per_table(scope));
  const std::int64_t most = bound ? std::min(tokens, *bound - 1 + rows) : tokens;
  std::uint64_t projected = 0;  // the values and norms of one lane
  if (held.projects_values())
    projected = static_cast<std::uint64_t>(most) *
                    (static_cast<std::uint64_t>(shape.page.head_dim) * sizeof(float) + sizeof(double)) +
                Backend::norm_bytes(shape.query_heads * shape.page.head_dim,
                                    {0, shape.query_heads / shape.kv_heads, shape.page.head_dim});
  return static_cast<std::uint64_t>(held_readers(held, shape.tables(scope), threads)) *
         (held.held_scratch_bytes(table_layout(shape, scope), most) + projected +
          (2 * lanes + 1) * floats_of_page(shape) * sizeof(float) +
          lanes * static_cast<std::uint64_t>(shape.page.slots) * sizeof(std::int64_t));
}

// Calls task(i) for every i below `count`, several at once. When all have returned, rethrows the first exception of a
// task.
template <class Task>
void run_tasks(ThreadPool& threads, int count, const Task& task) {
  std::atomic_flag failed;
  std::exception_ptr failure;
  threads.parallel_for(count, [&](int i) {
    try {
      task(i);
    } catch (...) {
      if (!failed.test_and_set()) failure = std::current_exception();
    }
  });
  if (failure != nullptr) std::rethrow_exception(failure);
}

int all_heads(const KvCacheShape& shape) {
  return shape.layers * shape.query_heads;
}

// Whether keys of a lane (of all governed layers) are rotated.
bool rotates(const KvCacheShape& shape, std::size_t lane) {
  const auto layer = lane / static_cast<std::size_t>(shape.kv_heads);
  return (shape.rotations.empty() ? shape.page.rotation : shape.rotations[layer]) != shape.unrotated;
}

// Copies keys and values of a chunk's tokens from a table's pages. These tokens are the newest of run 0, so their
// columns are the last of its newest frame.
class ChunkReader {
 public:
  ChunkReader(const KvCacheShape& shape, const PolicyChunk& chunk, const PageStore& store)
      : shape_(shape),
        chunk_(chunk),
        store_(store),
        dim_(static_cast<std::size_t>(shape.page.head_dim)),
        rows_(static_cast<std::size_t>(chunk.rows)),
        page_(floats_of_page(shape)) {}

  // `number`: of the table, among the governed ones.
  ChunkKv read(const PageTable& table, int number, bool keys, bool values) {
    const auto lanes = static_cast<std::size_t>(table.pages().lanes());
    rotations_.assign(lanes * rows_, 0);
    keys_.resize(keys ? lanes * rows_ * dim_ : 0);
    values_.resize(values ? lanes * rows_ * dim_ : 0);
    std::size_t left = rows_;
    const PageTable::Frame& frame = table.frames().back();
    const std::span<const PageEntry> entries = table.entries_of(frame);
    for (auto entry = entries.rbegin(); entry != entries.rend() && left > 0; ++entry) {
      const std::uint32_t column = entry->column;
      const SlotMask slots = entry->live & table.columns().slots_of(column, chunk_.first, chunk_.end());
      if (slots == 0) continue;
      left -= static_cast<std::size_t>(std::popcount(slots));
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (rotates(shape_, static_cast<std::size_t>(number) * lanes + lane))
          for_each(table, column, slots, [&](int slot, std::size_t row) {
            rotations_[lane * rows_ + row] = table.tokens().stored_rotation(column, slot, frame);
          });
        const PageId page = table.pages().of(column)[lane];
        const auto copy = [&](std::vector<float>& to) {
          for_each(table, column, slots, [&](int slot, std::size_t row) {
            std::copy_n(page_.data() + static_cast<std::size_t>(slot) * dim_, dim_,
                        to.data() + (lane * rows_ + row) * dim_);
          });
        };
        if (keys) store_.read_keys(page, page_.data()), copy(keys_);
        if (values) store_.read_values(page, page_.data()), copy(values_);
      }
    }
    KVASIR_CHECK(left == 0);
    return {table.pages().lanes(), chunk_.rows, static_cast<int>(dim_), keys_, values_, rotations_};
  }

 private:
  template <class Visit>
  void for_each(const PageTable& table, std::uint32_t column, SlotMask slots, Visit&& visit) const {
    for (; slots != 0; slots &= slots - 1) {
      const int slot = std::countr_zero(slots);
      visit(slot, static_cast<std::size_t>(table.columns().index(column, slot) - chunk_.first));
    }
  }

  const KvCacheShape& shape_;
  const PolicyChunk& chunk_;
  const PageStore& store_;
  std::size_t dim_;
  std::size_t rows_;
  std::vector<float> page_;  // keys or values of one page
  std::vector<float> keys_, values_;
  std::vector<std::int64_t> rotations_;
};

// Reads what a table of one run holds: a block is an entry of the table.
class PagesKv final : public HeldKv {
 public:
  // `projected_norms`: null: the policy asks for none.
  PagesKv(const KvCacheShape& shape, const PageStore& store, const ProjectedNorms* projected_norms)
      : shape_(shape),
        store_(store),
        projected_norms_(projected_norms),
        dim_(static_cast<std::size_t>(shape.page.head_dim)),
        page_(floats_of_page(shape)) {}

  // `number`: of the table, among the governed ones.
  void read_from(const PageTable& table, int number) {
    table_ = &table;
    number_ = number;
  }

  std::int64_t tokens() const override { return table_->length(); }

  void visit(Sides sides, const Visit& visit) override {
    std::int64_t first = 0;
    for (const PageTable::Frame& frame : table_->frames())
      for (const PageEntry& entry : table_->entries_of(frame)) {
        read_block(frame, entry, sides);
        const int rows = std::popcount(entry.live);
        visit(
            {first, frame.origin, {table_->pages().lanes(), rows, static_cast<int>(dim_), keys_, values_, rotations_}});
        first += rows;
      }
    KVASIR_CHECK(first == tokens());
  }

  void projected_norms(std::span<double> norms) override {
    KVASIR_CHECK(projected_norms_ != nullptr && std::ssize(norms) == tokens());
    const int lanes = table_->pages().lanes();
    std::vector<float> values;
    std::vector<double> of_lane(norms.size());
    values.reserve(norms.size() * dim_);
    std::ranges::fill(norms, 0.0);
    for (int lane = 0; lane < lanes; ++lane) {
      values.clear();
      append_values(static_cast<std::size_t>(lane), values);
      const int number = number_ * lanes + lane;
      (*projected_norms_)(shape_.model_layer(number / shape_.kv_heads), number % shape_.kv_heads, values, of_lane);
      for (std::size_t i = 0; i < norms.size(); ++i) norms[i] += of_lane[i] / lanes;
    }
  }

 private:
  void append_values(std::size_t lane, std::vector<float>& to) {
    for (const PageTable::Frame& frame : table_->frames())
      for (const PageEntry& entry : table_->entries_of(frame)) {
        store_.read_values(table_->pages().of(entry.column)[lane], page_.data());
        for (SlotMask slots = entry.live; slots != 0; slots &= slots - 1) {
          const float* const value = page_.data() + static_cast<std::size_t>(std::countr_zero(slots)) * dim_;
          to.insert(to.end(), value, value + dim_);
        }
      }
  }

  void read_block(const PageTable::Frame& frame, const PageEntry& entry, Sides sides) {
    const auto lanes = static_cast<std::size_t>(table_->pages().lanes());
    const auto rows = static_cast<std::size_t>(std::popcount(entry.live));
    const bool keys = has_keys(sides), values = has_values(sides);
    rotations_.assign(lanes * rows, 0);
    keys_.resize(keys ? lanes * rows * dim_ : 0);
    values_.resize(values ? lanes * rows * dim_ : 0);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const PageId page = table_->pages().of(entry.column)[lane];
      const auto copy = [&](std::vector<float>& to) {
        std::size_t row = lane * rows;
        for (SlotMask slots = entry.live; slots != 0; slots &= slots - 1, ++row)
          std::copy_n(page_.data() + static_cast<std::size_t>(std::countr_zero(slots)) * dim_, dim_,
                      to.data() + row * dim_);
      };
      if (keys) store_.read_keys(page, page_.data()), copy(keys_);
      if (values) store_.read_values(page, page_.data()), copy(values_);
      if (!rotates(shape_, static_cast<std::size_t>(number_) * lanes + lane)) continue;
      std::size_t row = lane * rows;
      for (SlotMask slots = entry.live; slots != 0; slots &= slots - 1, ++row)
        rotations_[row] = table_->tokens().stored_rotation(entry.column, std::countr_zero(slots), frame);
    }
  }

  const KvCacheShape& shape_;
  const PageStore& store_;
  const ProjectedNorms* projected_norms_;
  std::size_t dim_;
  std::vector<float> page_;  // keys or values of one page
  std::vector<float> keys_, values_;
  std::vector<std::int64_t> rotations_;
  const PageTable* table_ = nullptr;
  int number_ = 0;
};

}  // namespace

TableLayout table_layout(const KvCacheShape& shape, PolicyScope scope) {
  TableLayout layout;
  layout.layers = scope == PolicyScope::kSequence ? 1 : shape.layers;
  layout.per_layer = scope == PolicyScope::kHead ? shape.kv_heads : 1;
  layout.heads = shape.query_heads / layout.per_layer;
  layout.lanes = shape.lanes_per_table(scope);
  layout.head_dim = shape.page.head_dim;
  if (scope != PolicyScope::kSequence) layout.turns = shape.long_rotation ? shape.long_turns : shape.turns;
  return layout;
}

PolicyListener::PolicyListener(RetentionPolicy* policy, const KvCacheShape& shape, ThreadPool* threads,
                               ProjectedNorms projected_norms)
    : shape_(shape),
      threads_(threads),
      projected_norms_(std::move(projected_norms)),
      scope_(policy->traits().scope),
      tables_per_layer_(table_layout(shape, scope_).per_layer),
      masses_(policy->as<ObservesMasses>()),
      kv_(policy->as<ReadsKv>()),
      bound_(policy->bound()),
      held_(policy->as<ReadsHeldKv>()),
      queries_(policy->as<SumsQueries>()) {}

std::uint64_t PolicyListener::most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens,
                                         int rows) {
  std::uint64_t bytes = 0;
  if (const ReadsKv* kv = policy.as<ReadsKv>()) bytes += kv_bytes(*kv, shape, policy.traits().scope, rows);
  if (const ReadsHeldKv* held = policy.as<ReadsHeldKv>())
    bytes += held_bytes(*held, shape, policy.traits().scope, tokens, policy.bound(), rows, kMostReaders);
  if (policy.as<SumsQueries>() != nullptr)
    bytes += QueryAccumulator::bytes_for(all_heads(shape), shape.page.head_dim, rows);
  return bytes;
}

std::uint64_t PolicyListener::bytes_for(const PolicyChunk& chunk) const {
  std::uint64_t bytes = kv_ != nullptr ? kv_bytes(*kv_, shape_, scope_, chunk.rows) : 0;
  if (reads_held(chunk))
    bytes += held_bytes(*held_, shape_, scope_, chunk.end(), bound_, chunk.rows, threads_->threads());
  if (const int rows = wanted_queries(chunk, 0, chunk.rows); rows > 0)
    bytes += QueryAccumulator::bytes_for(all_heads(shape_), shape_.page.head_dim, rows);
  return bytes;
}

// Returns whether the policy may read what a table holds when the chunk ends. Of generated tokens some may be drafts
// that do not stay, and fewer rows may end where the policy prunes.
bool PolicyListener::reads_held(const PolicyChunk& chunk) const {
  if (held_ == nullptr) return false;
  bool reads = !chunk.prompt && chunk.rows > 1;
  for (int t = 0; t < shape_.tables(scope_) && !reads; ++t) reads = held_->wants_held(chunk, t);
  return reads;
}

// Returns of how many of the chunk's rows [first, first + rows) the policy wants the queries.
int PolicyListener::wanted_queries(const PolicyChunk& chunk, int first, int rows) const {
  int wanted = 0;
  for (int row = first; row < first + rows && queries_ != nullptr; ++row) wanted += queries_->wants_queries(chunk, row);
  return wanted;
}

void PolicyListener::begin_chunk(const PolicyChunk& chunk) {
  chunk_ = chunk;
  if (const int rows = wanted_queries(chunk, 0, chunk.rows); rows > 0)
    sums_.begin(all_heads(shape_), shape_.page.head_dim, rows);
}

AttentionListener* PolicyListener::begin_pass(int first, int rows) {
  first_ = first;
  wants_masses_ = false;
  for (int row = 0; row < rows && masses_ != nullptr && !wants_masses_; ++row) wants_masses_ = wants_row(row);
  wants_queries_ = wanted_queries(chunk_, first, rows) > 0;
  return wants_masses_ || wants_queries_ || tap_ != nullptr ? this : nullptr;
}

void PolicyListener::end_chunk(const KvSequence& tables, const PageStore& store) {
  if (sums_.bytes() > 0) {
    const auto start = std::chrono::steady_clock::now();
    const int heads = all_heads(shape_) / tables.governed_tables();
    run_tasks(*threads_, tables.governed_tables(),
              [&](int t) { queries_->read_queries(chunk_, t, sums_.of(t * heads, heads)); });
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    sums_.end();
  }
  if (kv_ == nullptr && kv_tap_ == nullptr) return show_held(tables, store);
  ChunkReader reader(shape_, chunk_, store);
  const auto wants = [&](bool (ReadsKv::*side)() const) {
    return (kv_ != nullptr && (kv_->*side)()) || (kv_tap_ != nullptr && (kv_tap_->*side)());
  };
  for (int t = 0; t < tables.governed_tables(); ++t) {
    const ChunkKv kv = reader.read(tables.table(t), t, wants(&ReadsKv::wants_keys), wants(&ReadsKv::wants_values));
    for (ReadsKv* receiver : {kv_, kv_tap_})
      if (receiver != nullptr) receiver->read_kv(chunk_, t, kv.only(receiver->wants_keys(), receiver->wants_values()));
  }
  show_held(tables, store);
}

void PolicyListener::show_held(const KvSequence& tables, const PageStore& store) {
  if (held_ == nullptr) return;
  const auto start = std::chrono::steady_clock::now();
  const int count = tables.governed_tables();
  int first = 0;
  while (first < count && !held_->wants_held(chunk_, first)) ++first;
  if (first == count) return;  // most chunks end without a prune
  std::atomic<int> next{first};
  const auto read = [&](int) {
    PagesKv pages(shape_, store, held_->projects_values() ? &projected_norms_ : nullptr);
    for (int t; (t = next++) < count;) {
      if (!held_->wants_held(chunk_, t)) continue;
      pages.read_from(tables.table(t), t);
      held_->read_held(chunk_, t, pages);
    }
  };
  const int readers = held_readers(*held_, count, threads_->threads());
  if (readers == 1) {
    read(0);  // not as a task: norms of projected values use the threads
  } else {
    run_tasks(*threads_, readers, read);
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::span<const MassReduction> PolicyListener::reductions() const {
  if (!wants_masses_) return {};
  return masses_->reductions();
}

void PolicyListener::hear_queries(const ObservedQueries& queries) {
  if (tap_ != nullptr && tap_->wants_queries()) tap_->observe_queries(queries);
  if (queries_ == nullptr) return;
  const int head = queries.layer * shape_.query_heads + queries.head;
  for (int row = 0; row < queries.rows; ++row)
    if (queries_->wants_queries(chunk_, first_ + queries.first_row + row)) sums_.add(head, queries.of(row));
}

void PolicyListener::hear_masses(const ObservedMasses& masses) {
  const auto start = std::chrono::steady_clock::now();
  const int table = masses.layer * tables_per_layer_ + masses.table;
  masses_->observe(chunk_, table, first_ + masses.row, masses.masses);
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvasir

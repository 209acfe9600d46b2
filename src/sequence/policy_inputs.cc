#include "sequence/policy_inputs.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvasir {
namespace {

std::size_t floats_of_page(const KvCacheShape& shape) {
  return static_cast<std::size_t>(shape.page.slots) * static_cast<std::size_t>(shape.page.head_dim);
}

// Keys and values of one table at a time, and those of one page.
std::uint64_t kv_bytes(const ReadsKv& kv, const KvCacheShape& shape, PolicyScope scope, int rows) {
  const auto all = static_cast<std::uint64_t>(rows);
  const std::uint64_t floats =
      static_cast<std::uint64_t>(shape.lanes_per_table(scope)) * all * static_cast<std::uint64_t>(shape.page.head_dim);
  return (static_cast<std::uint64_t>(kv.wants_keys() + kv.wants_values()) * floats + floats_of_page(shape)) *
             sizeof(float) +
         all * sizeof(std::int64_t);
}

int all_heads(const KvCacheShape& shape) {
  return shape.layers * shape.query_heads;
}

// Copies what the pages of a table hold of a chunk's tokens: the newest of run 0, so their columns are the last of its
// newest frame.
class ChunkReader {
 public:
  ChunkReader(const KvCacheShape& shape, const PolicyChunk& chunk, const PageStore& store)
      : chunk_(chunk),
        store_(store),
        dim_(static_cast<std::size_t>(shape.page.head_dim)),
        rows_(static_cast<std::size_t>(chunk.rows)),
        page_(floats_of_page(shape)),
        rotations_(rows_) {}

  ChunkKv read(const PageTable& table, bool keys, bool values) {
    const auto lanes = static_cast<std::size_t>(table.pages().lanes());
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
      for_each(table, column, slots, [&](int slot, std::size_t row) {
        rotations_[row] = table.tokens().stored_rotation(column, slot, frame);
      });
      for (std::size_t lane = 0; lane < lanes; ++lane) {
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

  const PolicyChunk& chunk_;
  const PageStore& store_;
  std::size_t dim_;
  std::size_t rows_;
  std::vector<float> page_;  // keys or values of one page
  std::vector<float> keys_, values_;
  std::vector<std::int64_t> rotations_;
};

}  // namespace

TableLayout table_layout(const KvCacheShape& shape, PolicyScope scope) {
  TableLayout layout;
  layout.layers = scope == PolicyScope::kSequence ? 1 : shape.layers;
  layout.per_layer = scope == PolicyScope::kHead ? shape.kv_heads : 1;
  layout.heads = shape.query_heads / layout.per_layer;
  layout.lanes = shape.lanes_per_table(scope);
  layout.head_dim = shape.page.head_dim;
  return layout;
}

std::uint64_t PolicyInputs::most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, int rows) {
  std::uint64_t bytes = 0;
  if (const ReadsKv* kv = policy.as<ReadsKv>()) bytes += kv_bytes(*kv, shape, policy.traits().scope, rows);
  if (policy.as<SumsQueries>() != nullptr) bytes += QueryAccumulator::bytes_for(all_heads(shape), shape.page.head_dim);
  return bytes;
}

std::uint64_t PolicyInputs::bytes_for(const KvCacheShape& shape, PolicyScope scope, const PolicyChunk& chunk) const {
  std::uint64_t bytes = kv_ != nullptr ? kv_bytes(*kv_, shape, scope, chunk.rows) : 0;
  if (wants_queries(chunk, 0, chunk.rows)) bytes += QueryAccumulator::bytes_for(all_heads(shape), shape.page.head_dim);
  return bytes;
}

bool PolicyInputs::wants_queries(const PolicyChunk& chunk, int first, int rows) const {
  for (int row = first; row < first + rows; ++row)
    if (wants_queries(chunk, row)) return true;
  return false;
}

void PolicyInputs::begin(const KvCacheShape& shape, const PolicyChunk& chunk) {
  if (wants_queries(chunk, 0, chunk.rows)) sums_.begin(all_heads(shape), shape.page.head_dim);
}

void PolicyInputs::finish(const KvCacheShape& shape, const PolicyChunk& chunk, const KvSequence& tables,
                          const PageStore& store, ReadsKv* other) {
  if (sums_.bytes() > 0) {
    std::int64_t rows = 0;
    for (int row = 0; row < chunk.rows; ++row) rows += wants_queries(chunk, row);
    const int heads = all_heads(shape) / tables.governed_tables();
    for (int t = 0; t < tables.governed_tables(); ++t)
      queries_->read_queries(chunk, t, sums_.of(t * heads, heads, rows));
    sums_.end();
  }
  if (kv_ == nullptr && other == nullptr) return;
  ChunkReader reader(shape, chunk, store);
  const auto wants = [&](bool (ReadsKv::*side)() const) {
    return (kv_ != nullptr && (kv_->*side)()) || (other != nullptr && (other->*side)());
  };
  for (int t = 0; t < tables.governed_tables(); ++t) {
    const ChunkKv kv = reader.read(tables.table(t), wants(&ReadsKv::wants_keys), wants(&ReadsKv::wants_values));
    for (ReadsKv* receiver : {kv_, other})
      if (receiver != nullptr) receiver->read_kv(chunk, t, kv.only(receiver->wants_keys(), receiver->wants_values()));
  }
}

}  // namespace kvasir

// Writes the keys and values of a pass to their pages, and encodes the pages that it completes.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/kernels/encode_page.h"

namespace kvasir {

// Where the 16 bits of a column that is encoded in this pass are.
std::byte* CpuAttention::open_page(const LayerTable& table, std::size_t seal, int head) const {
  const std::vector<SealedColumn>& seals = table.table->batch->seals;
  if (const PageId* open = seals[seal].open) return store_->data(open[table.first_lane + head - table.first_head]);
  std::size_t number = 0;  // among those without pages
  for (std::size_t s = 0; s < seal; ++s) number += seals[s].open == nullptr;
  return staged_.data() + table.first_staged +
         (number * static_cast<std::size_t>(table.heads) + static_cast<std::size_t>(head - table.first_head)) *
             table.table->batch->format.open().bytes();
}

void CpuAttention::ensure_staged() {
  std::size_t bytes = 0;
  for (LayerTable& table : layer_tables_) {
    const BatchTable& batch = *table.table->batch;
    table.first_staged = bytes;
    for (const SealedColumn& seal : batch.seals)
      if (seal.open == nullptr) bytes += static_cast<std::size_t>(table.heads) * batch.format.open().bytes();
  }
  staged_.ensure(bytes);
}

void CpuAttention::store_head(const LayerTable& table, int head, const float* keys, const float* values) {
  const int dim = layer_shape().head_dim;
  const std::size_t floats = rotation_of(*table.table).floats();
  const BatchTable& batch = *table.table->batch;
  const PageFormat open = batch.format.open();
  const auto lane = static_cast<std::size_t>(table.first_lane + head - table.first_head);
  const float* rotation = key_rotation_.data() + table.table->first_key;
  std::size_t at = product(table.sequence->first_row, layer_shape().kv_heads * dim) + product(head, dim);
  alignas(64) float key[kMaxHeadDim];
  alignas(64) float value[kMaxHeadDim];
  std::byte* page = nullptr;
  for (std::size_t row = 0; row < batch.slots.size(); ++row) {
    const WriteSlot& place = batch.slots[row];
    if (row == 0 || place.column != batch.slots[row - 1].column) {
      const auto seal = std::ranges::find(batch.seals, place.column, &SealedColumn::column);
      page = seal != batch.seals.end()
                 ? open_page(table, static_cast<std::size_t>(seal - batch.seals.begin()), head)
                 : store_->data(batch.pages[std::size_t{place.column} * static_cast<std::size_t>(batch.lanes) + lane]);
    }
    kernels_.rope(keys + at, 1, dim, rotary(), rotation, rotation + floats / 2, 1.0F, key);
    if (open.hadamard_keys) hadamard(key, 1, dim);
    const float* own = values + at;
    if (open.hadamard_values) {
      std::copy_n(own, dim, value);
      hadamard(value, 1, dim);
      own = value;
    }
    kernels_.store_kv(open, page, place.slot, key, own);
    rotation += floats;
    at += product(layer_shape().kv_heads, dim);
  }
  for (std::size_t s = 0; s < batch.seals.size(); ++s) {
    const SealedColumn& seal = batch.seals[s];
    encode_page(batch.format, open_page(table, s, head), seal.live,
                store_->data(batch.pages[std::size_t{seal.column} * static_cast<std::size_t>(batch.lanes) + lane]));
  }
}

void CpuAttention::store(int layer, const float* keys, const float* values) {
  set_layer(layer);
  // By head: tokens of one page share cache lines, heads do not.
  threads_.parallel_for(layer_shape().kv_heads, [&](int head) {
    for (const LayerTable& table : layer_tables_)
      if (head >= table.first_head && head < table.first_head + table.heads) store_head(table, head, keys, values);
  });
}

// Points to the 16 bits of the columns of a partial that the rows of a task read in that form although the pass encodes
// them.
void CpuAttention::use_open_pages(const Task& task, const Partial& part, const PageFormat* open,
                                  const std::byte** pages, const PageFormat** formats) const {
  const BatchTable& batch = *task.table->table->batch;
  for (std::size_t s = batch.seals.size(); s > 0 && batch.seals[s - 1].first_row > task.row; --s)
    for (std::uint32_t e = part.begin; e < part.end; ++e) {
      if (batch.frames[part.frame].entries[e].column != batch.seals[s - 1].column) continue;
      pages[e - part.begin] = open_page(*task.table, s - 1, task.head);
      formats[e - part.begin] = open;
    }
}

}  // namespace kvasir

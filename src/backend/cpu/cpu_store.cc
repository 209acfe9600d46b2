// Writes the keys and values of a pass to their pages, and encodes the pages that it completes.
#include <algorithm>

#include "backend/cpu/cpu_attention.h"
#include "backend/cpu/kernels/pages/encode_page.h"

namespace kvasir {

namespace {

void store_head(const KernelTable& kernels, const PassTables& tables, const LayerTable& table, int head,
                const float* keys, const float* values) {
  const int dim = tables.layer().head_dim;
  const std::size_t stride = product(tables.layer().kv_heads, dim);
  const std::size_t floats = tables.rotation_floats(*table.table);
  const BatchTable& batch = table.batch();
  const PageFormat open = batch.format.open();
  const float* rotation = tables.key_rotations(*table.table);
  std::size_t at = static_cast<std::size_t>(table.sequence->first_row) * stride + product(head, dim);
  alignas(64) float key[kMaxHeadDim];
  alignas(64) float value[kMaxHeadDim];
  std::byte* page = nullptr;
  for (std::size_t row = 0; row < batch.slots.size(); ++row) {
    const WriteSlot& place = batch.slots[row];
    if (row == 0 || place.column != batch.slots[row - 1].column) {
      const auto seal = std::ranges::find(batch.seals, place.column, &SealedColumn::column);
      page = seal != batch.seals.end()
                 ? tables.open_page(table, static_cast<std::size_t>(seal - batch.seals.begin()), head)
                 : tables.store().data(table.page(place.column, head));
    }
    kernels.rope(keys + at, 1, dim, tables.rotary(), rotation, rotation + floats / 2, 1.0F, key);
    if (open.hadamard_keys) hadamard(key, 1, dim);
    const float* own = values + at;
    if (open.hadamard_values && !open.latent) {
      std::copy_n(own, dim, value);
      hadamard(value, 1, dim);
      own = value;
    }
    kernels.store_kv(open, page, place.slot, key, own);
    rotation += floats;
    at += stride;
  }
  for (std::size_t s = 0; s < batch.seals.size(); ++s) {
    const SealedColumn& seal = batch.seals[s];
    encode_page(batch.format, tables.open_page(table, s, head), seal.live,
                tables.store().data(table.page(seal.column, head)));
  }
}

}  // namespace

void CpuAttention::store(int layer, const float* keys, const float* values) {
  tables_.set_layer(layer);
  // Each head is one thread's: tokens of a page share cache lines, heads do not.
  threads_.parallel_for(tables_.layer().kv_heads, [&](int head) {
    for (const LayerTable& table : tables_.of_layer())
      if (head >= table.first_head && head < table.first_head + table.heads)
        store_head(kernels_, tables_, table, head, keys, values);
  });
}

}  // namespace kvasir

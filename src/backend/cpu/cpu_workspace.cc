// What passes take beside weights and pages: the plan, and what the buffers have come to.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"

namespace kvasir {
namespace {

constexpr std::size_t kQ8BlockSums = 5 * sizeof(float);  // bytes beside a block's quants: scale and sums

std::uint64_t rounded_up(std::uint64_t n, int multiple) {
  const auto m = static_cast<std::uint64_t>(multiple);
  return (n + m - 1) / m * m;
}

// Of a vector that is appended to.
std::uint64_t most_grown(std::uint64_t size) {
  return 2 * size;
}

}  // namespace

std::uint64_t CpuBackend::workspace_bytes(const WorkspaceRequest& request) const {
  return cpu_workspace_bytes(shape_, request, threads_.threads());
}

std::uint64_t cpu_workspace_bytes(const BackendShape& s, const Backend::WorkspaceRequest& request, int threads) {
  const int rows = request.rows;
  const auto floats = [&](int per_row) { return product(rows, per_row) * sizeof(float); };
  const int attention = s.heads * s.head_dim;
  const std::uint64_t groups = rounded_up(static_cast<std::uint64_t>(rows), kRowGroup);
  const int widest = std::max({s.width, attention, s.ffn});
  const std::uint64_t activations =
      floats(s.width) * 3 + floats(attention) * 2 + floats(2 * s.kv_heads * s.head_dim) + floats(2 * s.ffn);
  const std::uint64_t quantized =
      groups * static_cast<std::uint64_t>(widest) +
      groups * static_cast<std::uint64_t>((widest + kQ8Block - 1) / kQ8Block) * kQ8BlockSums;
  return activations + quantized + CpuAttention::workspace_bytes(s, request, threads) +
         product(request.logits, s.vocabulary) * sizeof(float);
}

std::uint64_t CpuBackend::allocated_workspace() const {
  std::uint64_t sum = logits_.bytes() + q8_quants_.bytes() + q8_scale_.bytes() + q8_scaled_sum_.bytes() +
                      q8_sum_.bytes() + q8_half_sum_.bytes() + attention_.allocated_bytes();
  for (const Tensor& tensor : tensors_) sum += tensor.data.bytes();
  return sum;
}

std::uint64_t CpuAttention::workspace_bytes(const BackendShape& shape, const Backend::WorkspaceRequest& request,
                                            int threads) {
  const auto rows = static_cast<std::uint64_t>(request.rows);
  const auto heads = static_cast<std::uint64_t>(shape.heads);
  const auto dim = static_cast<std::uint64_t>(shape.head_dim);
  const auto group = static_cast<std::uint64_t>(shape.group());
  const auto tables = static_cast<std::uint64_t>(request.tables);
  const auto all_tables = static_cast<std::uint64_t>(request.all_tables);
  const auto frames = static_cast<std::uint64_t>(request.frames);
  const auto entries = static_cast<std::uint64_t>(request.entries);
  const auto slots = static_cast<std::uint64_t>(request.slots);
  const auto sequences = std::min(rows, static_cast<std::uint64_t>(request.sequences));

  // Keys and queries of a batch's tables; rotated queries of a layer's.
  const std::uint64_t rotations = all_tables * rows * (1 + frames) * static_cast<std::uint64_t>(shape.rotary);
  const std::uint64_t rotated = tables * frames * rows * heads * dim;

  // Each tile of rows has a total, and one partial at a time; with few tiles, all of its partials.
  const std::uint64_t partials =
      std::min(entries, request.gaps ? entries : entries / static_cast<std::uint64_t>(kPartialEntries) + 2 * frames);
  const auto few = static_cast<std::uint64_t>(4 * threads - 1);  // tiles
  const std::uint64_t tile = std::max<std::uint64_t>(static_cast<std::uint64_t>(kNarrowTile), group);
  const std::uint64_t apart = std::min(rows * heads, few * tile);  // queries
  const std::uint64_t states = std::max(rows * heads * 2, apart * (1 + partials));
  const auto tile_rows = static_cast<std::uint64_t>(std::max(1, kNarrowTile / shape.group()));
  const std::uint64_t tasks =
      static_cast<std::uint64_t>(shape.kv_heads) * ((rows + tile_rows - 1) / tile_rows + sequences);
  const std::uint64_t lists = sequences * all_tables * (partials * sizeof(Partial) + sizeof(Table)) +
                              sequences * tables * sizeof(LayerTable) + tasks * sizeof(Task) +
                              std::min(few, tasks) * partials * sizeof(shares_.front());

  // Observed weights of some rows, their masses, and the masks of their tokens.
  std::uint64_t observed = 0;
  if (request.observed_rows > 0) {
    const std::uint64_t wanted = std::min(rows, static_cast<std::uint64_t>(request.observed_rows) * sequences);
    const std::uint64_t row = heads * entries * slots;
    const std::uint64_t least = request.weights ? row : row / tables;
    const std::uint64_t weights = std::min(wanted * row, std::max<std::uint64_t>(kMostWeights, least));
    const std::uint64_t unit =
        std::min<std::uint64_t>(weights, static_cast<std::uint64_t>(most_unit_rows(shape, threads)) * row);
    const std::uint64_t masses = unit * tables / heads * static_cast<std::uint64_t>(request.reductions);
    observed = (weights + weights / slots) * sizeof(float) + weights / slots / group * sizeof(SlotMask) +
               masses * sizeof(double) + (wanted + tables) * heads * sizeof(observed_.front());
  }
  const std::uint64_t staged = rows / slots * static_cast<std::uint64_t>(shape.kv_heads) * request.staged_page_bytes;
  const std::uint64_t selected = std::min(rows, static_cast<std::uint64_t>(request.selected_rows) * sequences) *
                                 static_cast<std::uint64_t>(shape.kv_heads) * entries * sizeof(SlotMask);
  const std::uint64_t recalling =
      request.recalls ? most_grown(sequences * static_cast<std::uint64_t>(shape.kv_heads) * sizeof(recalling_.front()))
                      : 0;
  return (rotations + rotated + states * (dim + 2)) * sizeof(float) + most_grown(lists) + observed + selected + staged +
         recalling + RotationTable::bytes(shape.rotary);
}

std::uint64_t CpuAttention::allocated_bytes() const {
  return RotationTable::bytes(rotations_.rotary()) + tables_.capacity() * sizeof(Table) +
         partials_.capacity() * sizeof(Partial) + layer_tables_.capacity() * sizeof(LayerTable) +
         tasks_.capacity() * sizeof(Task) + shares_.capacity() * sizeof(shares_.front()) +
         recalling_.capacity() * sizeof(recalling_.front()) + observed_.capacity() * sizeof(observed_.front()) +
         read_.bytes() + staged_.bytes() + key_rotation_.bytes() + query_rotation_.bytes() + rotated_.bytes() +
         state_weighted_.bytes() + state_scalars_.bytes() + weights_.bytes() + weight_maxima_.bytes() +
         retained_.bytes() + masses_.bytes();
}

int CpuAttention::most_unit_rows(const BackendShape& shape, int threads) {
  return std::max(1, kNarrowTile / shape.group()) * std::max(1, 4 * threads / shape.kv_heads);
}

}  // namespace kvasir

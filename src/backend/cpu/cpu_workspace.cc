// Memory of passes beside weights and pages: planned, and allocated.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"

namespace kvasir {
namespace {

// Returns the most that a vector may have allocated for `size` bytes after appending.
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
  int widths[kActivations] = {};
  const auto widen = [&](Activation activation, int width) {
    int& most = widths[static_cast<std::size_t>(activation)];
    most = std::max(most, width);
  };
  int multiplied = s.width;  // floats of a row that a matrix is multiplied with
  std::uint64_t experts = 0, of_heads = 0, quantized_heads = 0;
  for (const Activation activation : {Activation::kResidual, Activation::kNormalized, Activation::kProjected})
    widen(activation, s.width);
  for (const LayerShape& layer : s.layers) {
    const int queries = layer.heads * layer.head_dim, keys = layer.kv_heads * layer.head_dim;
    const std::span<const int> inputs = layer.mixer != nullptr ? layer.mixer->inputs() : std::span<const int>();
    const int mixed = layer.mixer != nullptr ? layer.mixer->output() : queries;
    for (std::size_t i = 0; i < inputs.size(); ++i) widen(kMixerInputs[i], inputs[i]);
    widen(Activation::kQuery, queries);
    widen(Activation::kKey, keys);
    widen(Activation::kValue, keys);
    widen(Activation::kAttention, mixed);
    widen(Activation::kGate, std::max({layer.hidden, s.per_layer, layer.gated ? queries : 0}));
    const int per_layer = s.per_layer * static_cast<int>(s.layers.size());
    widen(Activation::kUp, std::max(layer.hidden, per_layer));
    widen(Activation::kPerLayer, per_layer);
    widen(Activation::kBeside, layer.experts.beside ? s.width : 0);
    widen(Activation::kRouter, layer.experts.count);
    if (const LayerShape::Latent& latent = layer.latent; latent.rank > 0) {
      const int given = layer.heads * latent.value, plain = layer.heads * latent.plain;
      widen(Activation::kUp, std::max(latent.query_rank, given));
      widen(Activation::kGate, std::max(plain, latent.rank));
      widen(Activation::kValue, layer.heads * (layer.head_dim - latent.rank));
      multiplied = std::max({multiplied, latent.query_rank, given});
      const int most = std::max(latent.plain, latent.rank);
      of_heads = std::max(of_heads, floats(layer.heads * most));
      quantized_heads =
          std::max(quantized_heads, QuantizedRows::bytes(layer.heads * ((rows + kRowGroup - 1) / kRowGroup), most));
    }
    multiplied = std::max({multiplied, mixed, layer.hidden, s.per_layer});
    experts = std::max(experts, CpuExperts::workspace_bytes(layer.experts, s.width, rows));
  }
  std::uint64_t activations = 0;
  for (const int width : widths) activations += floats(width);
  const std::uint64_t quantized =
      std::max(QuantizedRows::bytes((rows + kRowGroup - 1) / kRowGroup, multiplied), quantized_heads);
  return activations + of_heads + quantized + experts + CpuAdapters::workspace_bytes(s.adapter_ranks, rows) +
         CpuAttention::workspace_bytes(s, request, threads) + product(request.logits, s.vocabulary) * sizeof(float);
}

std::uint64_t CpuBackend::allocated_workspace() const {
  std::uint64_t sum = logits_.bytes() + of_heads_.bytes() + quantized_.allocated_bytes() +
                      attention_.allocated_bytes() + experts_.allocated_bytes() + adapters_.allocated_bytes();
  for (const Tensor& tensor : tensors_) sum += tensor.data.bytes();
  return sum;
}

std::uint64_t CpuAttention::workspace_bytes(const BackendShape& shape, const Backend::WorkspaceRequest& request,
                                            int threads) {
  const auto rows = static_cast<std::uint64_t>(request.rows);
  const auto slots = static_cast<std::uint64_t>(request.slots);
  const auto sequences = std::min(rows, static_cast<std::uint64_t>(request.sequences));
  const auto few = static_cast<std::uint64_t>(4 * threads - 1);  // the most tiles that are too few for the threads

  // Sums over buffers that hold all tables, maxima over those that each layer uses anew.
  std::uint64_t rotations = 0, table_lists = 0, staged_for_later = 0;
  std::uint64_t rotated = 0, states = 0, layer_lists = 0, tasks = 0, shares = 0, staged = 0, selected = 0,
                recalling = 0;
  std::uint64_t weights = 0, masks = 0, masses = 0, spans = 0;
  const auto rotary = static_cast<std::uint64_t>(std::ranges::max_element(shape.rotations, {}, &Rotation::dims)->dims);
  const auto most = [](std::uint64_t* bytes, std::uint64_t other) { *bytes = std::max(*bytes, other); };
  for (const Backend::WorkspaceRequest::Tables& of : request.tables) {
    const LayerShape& layer = shape.layers[static_cast<std::size_t>(of.layer)];
    const auto heads = static_cast<std::uint64_t>(layer.heads);
    const auto kv_heads = static_cast<std::uint64_t>(layer.kv_heads);
    const auto dim = static_cast<std::uint64_t>(layer.head_dim);
    const auto group = static_cast<std::uint64_t>(layer.group());
    const auto tables = static_cast<std::uint64_t>(of.of_layer);
    const auto all_tables = static_cast<std::uint64_t>(of.all);
    const auto frames = static_cast<std::uint64_t>(of.frames);
    const auto entries = static_cast<std::uint64_t>(of.entries);

    rotations += all_tables * rows * (1 + frames) * rotary * sizeof(float);
    most(&rotated, tables * frames * rows * heads * dim * sizeof(float));

    // Each tile of rows has a total, and one partial at a time; with few tiles, all of its partials.
    const std::uint64_t partials =
        std::min(entries, of.gaps ? entries : entries / static_cast<std::uint64_t>(kPartialEntries) + 2 * frames);
    const std::uint64_t tile = std::max<std::uint64_t>(static_cast<std::uint64_t>(kNarrowTile), group);
    const std::uint64_t split = std::min(rows * heads, few * tile);  // queries
    most(&states, std::max(rows * heads * 2, split * (1 + partials)) * (dim + 2) * sizeof(float));
    const auto tile_rows = static_cast<std::uint64_t>(std::max(1, kNarrowTile / layer.group()));
    const std::uint64_t tiles = kv_heads * ((rows + tile_rows - 1) / tile_rows + sequences);
    table_lists += sequences * all_tables * (partials * sizeof(TablePartial) + sizeof(PassTable));
    most(&layer_lists, sequences * tables * sizeof(LayerTable));
    most(&tasks, tiles * sizeof(AttentionTask));
    most(&shares, std::min(few, tiles) * partials * sizeof(shares_.front()));

    // Observed weights of some rows, their masses, and the masks of their tokens.
    if (of.observed_rows > 0) {
      const std::uint64_t wanted = std::min(rows, static_cast<std::uint64_t>(of.observed_rows) * sequences);
      const std::uint64_t row = heads * entries * slots;
      const std::uint64_t least = of.weights ? row : row / tables;
      const std::uint64_t all = std::min(wanted * row, std::max<std::uint64_t>(ObservedWeights::kMost, least));
      const std::uint64_t unit =
          std::min<std::uint64_t>(all, static_cast<std::uint64_t>(most_observed_rows(layer, threads)) * row);
      most(&weights, (all + all / slots) * sizeof(float));
      most(&masks, all / slots / group * sizeof(SlotMask));
      most(&masses, unit * tables / heads * static_cast<std::uint64_t>(of.reductions) * sizeof(double));
      most(&spans, (wanted + tables) * heads * sizeof(std::span<const float>));
    }
    const std::uint64_t stage = rows / slots * kv_heads * of.staged_page_bytes;
    most(&staged, stage);
    staged_for_later += stage * static_cast<std::uint64_t>(PassTables::read_later(shape, layer));
    most(&selected, std::min(rows, static_cast<std::uint64_t>(of.selected_rows) * sequences) * kv_heads * entries *
                        sizeof(SlotMask));
    if (of.recalls) most(&recalling, most_grown(sequences * kv_heads * sizeof(recalling_.front())));
  }
  std::uint64_t cached = 0;
  for (const Rotation& rotation : shape.rotations) cached += RotationTable::bytes(rotation.dims);
  return rotations + rotated + states + most_grown(table_lists + layer_lists + tasks + shares) + weights + masks +
         masses + spans + selected + staged + staged_for_later + recalling + cached;
}

std::uint64_t CpuAttention::allocated_bytes() const {
  return tables_.allocated_bytes() + observed_.allocated_bytes() + tasks_.capacity() * sizeof(AttentionTask) +
         shares_.capacity() * sizeof(shares_.front()) + recalling_.capacity() * sizeof(recalling_.front()) +
         read_.bytes() + rotated_.bytes() + state_weighted_.bytes() + state_scalars_.bytes();
}

}  // namespace kvasir

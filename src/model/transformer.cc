#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/aligned_buffer.h"
#include "base/check.h"

namespace kvasir {
namespace {

std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

// Cosines and sines of position * inverse_frequency, [pairs] each. In double: a float angle is off by 0.03 at a
// million.
void fill_rotation(const std::vector<double>& inverse_frequencies, Position position, float* cosine, float* sine) {
  for (std::size_t i = 0; i < inverse_frequencies.size(); ++i) {
    const double angle = static_cast<double>(position) * inverse_frequencies[i];
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace

struct Transformer::Workspace {
  AlignedBuffer<float> residual;        // [rows][width]
  AlignedBuffer<float> normalized;      // [rows][width]
  AlignedBuffer<float> query;           // [rows][heads * head_dim]
  AlignedBuffer<float> key;             // [rows][kv_heads * head_dim]
  AlignedBuffer<float> value;           // [rows][kv_heads * head_dim]
  AlignedBuffer<float> rotated;         // per item [frames][rows][heads * head_dim]
  AlignedBuffer<float> attention;       // [rows][heads * head_dim]
  AlignedBuffer<float> gate;            // [rows][ffn]
  AlignedBuffer<float> up;              // [rows][ffn]
  AlignedBuffer<float> projected;       // [rows][width]
  AlignedBuffer<float> logits;          // [rows wanted][vocabulary]
  AlignedBuffer<float> key_rotation;    // [rows][cosines, sines]
  AlignedBuffer<float> query_rotation;  // per item [frames][rows][cosines, sines]
  AlignedBuffer<std::int8_t> q8;
  AlignedBuffer<float> q8_scale;
  AlignedBuffer<std::int32_t> q8_sum;
  AlignedBuffer<float> state_weighted;  // attention states: totals, then partials
  AlignedBuffer<float> state_scalars;   // maximum and sum of each
};

Transformer::Transformer(const ModelConfig* config, const Weights* weights, const KernelTable* kernels,
                         ThreadPool* threads)
    : config_(*config),
      weights_(*weights),
      kernels_(*kernels),
      threads_(*threads),
      work_(std::make_unique<Workspace>()) {}

Transformer::~Transformer() = default;

std::uint64_t Transformer::workspace_bytes(const ModelConfig& c, int rows, int frames, std::int64_t entries) {
  const auto floats = [&](int per_row) { return product(rows, per_row) * sizeof(float); };
  const auto several = static_cast<std::uint64_t>(frames);
  const int attention = c.heads * c.head_dim;
  const int groups = (rows + kRowGroup - 1) / kRowGroup * kRowGroup;
  const int widest = std::max({c.width, attention, c.ffn});
  const std::uint64_t activations = floats(c.width) * 3 + floats(attention) * (2 + several) +
                                    floats(2 * c.kv_heads * c.head_dim) + floats(2 * c.ffn) +
                                    floats(c.rotary) * (1 + several);
  const std::uint64_t quantized = product(groups, widest) + product(groups, (widest + kQ8Block - 1) / kQ8Block) * 8;
  const std::uint64_t states = floats(attention) * 2 + floats(c.heads * 2) * 2;
  const std::uint64_t masks = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(entries) * sizeof(SlotMask);
  return activations + quantized + states + masks + static_cast<std::uint64_t>(c.vocabulary) * sizeof(float);
}

void Transformer::embed(std::span<const ForwardItem> items) {
  std::vector<TokenValue> tokens;
  for (const ForwardItem& item : items) tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
  float* x = work_->residual.ensure(tokens.size() * static_cast<std::size_t>(config_.width));
  threads_.parallel_for(static_cast<int>(tokens.size()), [&](int row) {
    unpack_row(weights_.embedding, tokens[static_cast<std::size_t>(row)], x + product(row, config_.width));
  });
}

void Transformer::fill_rotations(std::span<const ForwardItem> items) {
  const auto pairs = static_cast<std::size_t>(config_.rotary / 2);
  std::size_t keys = 0;
  std::size_t queries = 0;
  for (const ForwardItem& item : items) {
    keys += static_cast<std::size_t>(item.view->rows);
    queries += product(item.view->frames, item.view->rows);
  }
  float* key = work_->key_rotation.ensure(keys * 2 * pairs);
  float* query = work_->query_rotation.ensure(queries * 2 * pairs);
  for (const ForwardItem& item : items) {
    for (const Position position : item.view->key_positions) {
      fill_rotation(config_.inverse_frequencies, position, key, key + pairs);
      key += 2 * pairs;
    }
    for (const Position position : item.view->query_positions) {
      fill_rotation(config_.inverse_frequencies, position, query, query + pairs);
      query += 2 * pairs;
    }
  }
}

// Quantises rows of x into the workspace's q8 buffers.
void Transformer::quantize(const float* x, int inputs, int rows) {
  const int blocks = inputs / kQ8Block;
  const std::size_t groups = static_cast<std::size_t>((rows + kRowGroup - 1) / kRowGroup);
  const std::size_t group_blocks = product(blocks, kRowGroup);
  std::int8_t* q8 = work_->q8.ensure(groups * group_blocks * kQ8Block);
  float* scale = work_->q8_scale.ensure(groups * group_blocks);
  std::int32_t* sum = work_->q8_sum.ensure(groups * group_blocks);
  threads_.parallel_for(rows, [&](int row) {
    const std::size_t at =
        static_cast<std::size_t>(row / kRowGroup) * group_blocks + static_cast<std::size_t>(row % kRowGroup);
    kernels_.quantize_q8(x + product(row, inputs), inputs, q8 + at * kQ8Block, scale + at, sum + at);
  });
}

// All jobs share the activations and run as one parallel region.
void Transformer::multiply(const float* x, int inputs, int rows, std::span<const Job> jobs) {
  int panels = 0;
  bool q8 = false;
  for (const Job& job : jobs) {
    panels += job.weights->panels();
    q8 = q8 || job.weights->type == DType::kQ8_0;
  }
  if (q8) quantize(x, inputs, rows);
  const Activations activations{rows, inputs, x, work_->q8.data(), work_->q8_scale.data(), work_->q8_sum.data()};
  // Few rows: shares of the weights, several per thread so that a slow thread does not hold up the rest. Many rows:
  // small shares, whose weights stay in the nearest cache while the rows pass.
  const int share = rows <= 8 ? std::max(8, (panels / (threads_.threads() * 4) + 7) / 8 * 8) : 4;
  const auto multiply_share = [&](int task) {
    int begin = task * share;
    int end = std::min(panels, begin + share);
    for (const Job& job : jobs) {
      const int own = job.weights->panels();
      if (begin < own && begin < end)
        kernels_.matmul(*job.weights, activations, begin, std::min(end, own), job.out,
                        static_cast<std::size_t>(job.weights->outputs));
      begin = std::max(0, begin - own);
      end -= own;
      if (end <= 0) break;
    }
  };
  threads_.parallel_for((panels + share - 1) / share, multiply_share);
}

void Transformer::normalize(const float* x, const float* weight, int rows) {
  float* out = work_->normalized.ensure(product(rows, config_.width));
  threads_.parallel_for(rows, [&](int row) {
    kernels_.rms_norm(x + product(row, config_.width), weight, config_.width, config_.rms_eps,
                      out + product(row, config_.width));
  });
}

void Transformer::store_keys_and_values(PagePool& pool, std::span<const ForwardItem> items, int layer) {
  const int dim = config_.head_dim;
  const int stride = config_.kv_heads * dim;
  const auto pairs = static_cast<std::size_t>(config_.rotary / 2);
  // By head: tokens of one page share cache lines, heads do not.
  threads_.parallel_for(config_.kv_heads, [&](int head) {
    alignas(64) float key[kMaxHeadDim];
    std::size_t row = 0;
    for (const ForwardItem& item : items) {
      for (const AttentionView::RowSlot& place : item.view->slots) {
        const float* rotation = work_->key_rotation.data() + row * 2 * pairs;
        const std::size_t at = row * static_cast<std::size_t>(stride) + product(head, dim);
        kernels_.rope(work_->key.data() + at, 1, dim, config_.rotary, rotation, rotation + pairs, 1.0F, key);
        std::byte* page = pool.data(place.column->pages[static_cast<std::size_t>(layer * config_.kv_heads + head)]);
        kernels_.store_kv(pool.shape(), page, place.slot, key, work_->value.data() + at);
        ++row;
      }
    }
  });
}

void Transformer::rotate_queries(std::span<const ForwardItem> items) {
  const int stride = config_.heads * config_.head_dim;
  const auto pairs = static_cast<std::size_t>(config_.rotary / 2);
  const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  std::size_t total = 0;
  for (const ForwardItem& item : items) total += product(item.view->frames, item.view->rows);
  float* out = work_->rotated.ensure(total * static_cast<std::size_t>(stride));
  std::size_t first_row = 0;
  std::size_t first_query = 0;
  for (const ForwardItem& item : items) {
    const int rows = item.view->rows;
    threads_.parallel_for(item.view->frames * rows, [&](int query) {
      const float* rotation =
          work_->query_rotation.data() + (first_query + static_cast<std::size_t>(query)) * 2 * pairs;
      kernels_.rope(
          work_->query.data() + (first_row + static_cast<std::size_t>(query % rows)) * static_cast<std::size_t>(stride),
          config_.heads, config_.head_dim, config_.rotary, rotation, rotation + pairs, scale,
          out + (first_query + static_cast<std::size_t>(query)) * static_cast<std::size_t>(stride));
    });
    first_row += static_cast<std::size_t>(rows);
    first_query += product(item.view->frames, rows);
  }
}

void Transformer::attend(PagePool& pool, const ForwardItem& item, int first_row, std::size_t first_query, int layer) {
  const AttentionView& view = *item.view;
  const int dim = config_.head_dim;
  const int group = config_.group();
  const auto stride = static_cast<std::size_t>(config_.heads * dim);
  const int partials = static_cast<int>(view.partials.size());

  // A tile of rows passes over all partials of its lane in order. With too few tiles for the threads (decoding), the
  // partials of a tile are computed apart and merged in the same order: the same sums either way.
  constexpr int kTileQueries = 32;
  const int tile_rows = std::min(view.rows, std::max(1, kTileQueries / group));
  const int tiles = (view.rows + tile_rows - 1) / tile_rows;
  const int lane_tiles = config_.kv_heads * tiles;
  const bool apart = partials > 1 && lane_tiles < 4 * threads_.threads();
  const int queries = tile_rows * group;  // of a full tile
  const int states_per_tile = 1 + (apart ? partials : 1);
  const std::size_t states = product(lane_tiles, states_per_tile);
  float* weighted = work_->state_weighted.ensure(states * product(queries, dim));
  float* scalars = work_->state_scalars.ensure(states * product(queries, 2));

  const auto state_of = [&](int lane_tile, int index) {
    const std::size_t at = product(lane_tile, states_per_tile) + static_cast<std::size_t>(index);
    float* scalar = scalars + at * product(queries, 2);
    return AttentionState{scalar, scalar + queries, weighted + at * product(queries, dim)};
  };
  const auto rows_of = [&](int lane_tile) { return std::min(tile_rows, view.rows - lane_tile % tiles * tile_rows); };
  const auto clear = [&](const AttentionState& state, int count) {
    std::fill_n(state.maximum, count, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, count, 0.0F);
    std::fill_n(state.weighted, product(count, dim), 0.0F);
  };
  const auto run_partial = [&](int lane_tile, int index, const AttentionState& state) {
    const AttentionView::Partial& part = view.partials[static_cast<std::size_t>(index)];
    const int head = lane_tile / tiles;
    const int row = lane_tile % tiles * tile_rows;
    const std::byte* pages[kPartialEntries * LaneGroup::kMaxColumnEntries];
    for (int e = part.begin; e < part.end; ++e)
      pages[e - part.begin] = pool.data(
          view.columns[static_cast<std::size_t>(e)]->pages[static_cast<std::size_t>(layer * config_.kv_heads + head)]);
    AttentionPartial partial;
    partial.shape = pool.shape();
    partial.rows = rows_of(lane_tile);
    partial.group = group;
    partial.q = work_->rotated.data() +
                (first_query + product(part.frame, view.rows) + static_cast<std::size_t>(row)) * stride +
                product(head * group, dim);
    partial.q_row_stride = stride;
    partial.entries = part.end - part.begin;
    partial.pages = pages;
    partial.masks =
        view.masks.data() + static_cast<std::size_t>(row) * view.entries() + static_cast<std::size_t>(part.begin);
    partial.mask_row_stride = view.entries();
    clear(state, partial.rows * group);
    kernels_.attend(partial, state);
  };
  const auto merge_into_first = [&](int lane_tile, int index) {
    kernels_.merge(state_of(lane_tile, 0), state_of(lane_tile, index), rows_of(lane_tile) * group, dim);
  };
  const auto finish = [&](int lane_tile) {
    const int head = lane_tile / tiles;
    const int row = lane_tile % tiles * tile_rows;
    const AttentionState total = state_of(lane_tile, 0);
    for (int r = 0; r < rows_of(lane_tile); ++r) {
      const AttentionState of_row{total.maximum + r * group, total.sum + r * group,
                                  total.weighted + product(r * group, dim)};
      kernels_.finish(of_row, group, dim,
                      work_->attention.data() + static_cast<std::size_t>(first_row + row + r) * stride +
                          product(head * group, dim));
    }
  };

  if (apart) {
    threads_.parallel_for(lane_tiles * partials, [&](int task) {
      run_partial(task / partials, task % partials, state_of(task / partials, 1 + task % partials));
    });
    threads_.parallel_for(lane_tiles, [&](int lane_tile) {
      clear(state_of(lane_tile, 0), rows_of(lane_tile) * group);
      for (int p = 0; p < partials; ++p) merge_into_first(lane_tile, 1 + p);
      finish(lane_tile);
    });
    return;
  }
  threads_.parallel_for(lane_tiles, [&](int lane_tile) {
    clear(state_of(lane_tile, 0), rows_of(lane_tile) * group);
    for (int p = 0; p < partials; ++p) {
      run_partial(lane_tile, p, state_of(lane_tile, 1));
      merge_into_first(lane_tile, 1);
    }
    finish(lane_tile);
  });
}

std::span<const float> Transformer::forward(PagePool& pool, std::span<const ForwardItem> items) {
  int rows = 0;
  int wanted = 0;
  for (const ForwardItem& item : items) {
    KVASIR_CHECK(item.view->rows == static_cast<int>(item.tokens.size()) && item.logits <= item.view->rows);
    rows += item.view->rows;
    wanted += item.logits;
  }
  Workspace& w = *work_;
  const int attention = config_.heads * config_.head_dim;
  const int kv = config_.kv_heads * config_.head_dim;
  const std::size_t values = product(rows, config_.width);
  w.query.ensure(product(rows, attention));
  w.key.ensure(product(rows, kv));
  w.value.ensure(product(rows, kv));
  w.attention.ensure(product(rows, attention));
  w.gate.ensure(product(rows, config_.ffn));
  w.up.ensure(product(rows, config_.ffn));
  w.projected.ensure(values);
  embed(items);
  fill_rotations(items);
  float* x = w.residual.data();
  const auto add_projected = [&] {
    threads_.parallel_for(rows, [&](int row) {
      kernels_.add(x + product(row, config_.width), w.projected.data() + product(row, config_.width), config_.width);
    });
  };

  for (int l = 0; l < config_.layers; ++l) {
    const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(l)];
    normalize(x, layer.attention_norm, rows);
    const Job qkv[] = {{&layer.query, w.query.data()}, {&layer.key, w.key.data()}, {&layer.value, w.value.data()}};
    multiply(w.normalized.data(), config_.width, rows, qkv);
    store_keys_and_values(pool, items, l);
    rotate_queries(items);
    int first_row = 0;
    std::size_t first_query = 0;
    for (const ForwardItem& item : items) {
      attend(pool, item, first_row, first_query, l);
      first_row += item.view->rows;
      first_query += product(item.view->frames, item.view->rows);
    }
    const Job output[] = {{&layer.attention_output, w.projected.data()}};
    multiply(w.attention.data(), attention, rows, output);
    add_projected();

    normalize(x, layer.ffn_norm, rows);
    const Job gate_up[] = {{&layer.gate, w.gate.data()}, {&layer.up, w.up.data()}};
    multiply(w.normalized.data(), config_.width, rows, gate_up);
    threads_.parallel_for(rows, [&](int row) {
      float* gate = w.gate.data() + product(row, config_.ffn);
      kernels_.swiglu(gate, w.up.data() + product(row, config_.ffn), config_.ffn, gate);
    });
    const Job down[] = {{&layer.down, w.projected.data()}};
    multiply(w.gate.data(), config_.ffn, rows, down);
    add_projected();
  }

  if (wanted == 0) return {};
  float* logits = w.logits.ensure(product(wanted, config_.vocabulary));
  int row = 0;
  int kept = 0;
  for (const ForwardItem& item : items) {
    row += item.view->rows;
    for (int r = row - item.logits; r < row; ++r, ++kept)
      if (r != kept) std::copy_n(x + product(r, config_.width), config_.width, x + product(kept, config_.width));
  }
  normalize(x, weights_.output_norm, wanted);
  const Job output[] = {{&weights_.output, logits}};
  multiply(w.normalized.data(), config_.width, wanted, output);
  return {logits, product(wanted, config_.vocabulary)};
}

void Transformer::rotate_keys_behind(PagePool& pool, LaneGroup& group, TokenId id, Position shift) {
  const auto pairs = static_cast<std::size_t>(config_.rotary / 2);
  std::vector<float> rotation(2 * pairs);
  fill_rotation(config_.inverse_frequencies, shift, rotation.data(), rotation.data() + pairs);
  std::vector<const LaneGroup::Column*> columns;
  for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next)
    if (LaneGroup::live_behind(*column, id) != 0) columns.push_back(column);
  threads_.parallel_for(group.lanes(), [&](int lane) {
    for (const LaneGroup::Column* column : columns)
      kernels_.rotate_keys(pool.shape(), pool.data(column->pages[static_cast<std::size_t>(lane)]),
                           LaneGroup::live_behind(*column, id), config_.rotary, rotation.data(),
                           rotation.data() + pairs);
  });
}

}  // namespace kvasir

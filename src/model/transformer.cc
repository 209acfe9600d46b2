#include "model/transformer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/transformer_workspace.h"

namespace kvasir {

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
  const std::uint64_t rotations = static_cast<std::uint64_t>(kRotationCacheEntries) * floats_per_rotation(c) * 4;
  return activations + quantized + states + masks + rotations +
         static_cast<std::uint64_t>(c.vocabulary) * sizeof(float);
}

void Transformer::embed(std::span<const ForwardItem> items) {
  std::vector<TokenValue> tokens;
  for (const ForwardItem& item : items) tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
  float* x = work_->residual.ensure(tokens.size() * static_cast<std::size_t>(config_.width));
  threads_.parallel_for(static_cast<int>(tokens.size()), [&](int row) {
    unpack_row(weights_.embedding, tokens[static_cast<std::size_t>(row)], x + product(row, config_.width));
  });
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

std::span<const float> Transformer::forward(PagePool& pool, std::span<const ForwardItem> items) {
  int rows = 0;
  int wanted = 0;
  for (const ForwardItem& item : items) {
    KVASIR_CHECK(item.logits <= item.rows());
    for (const AttentionView& view : item.views) KVASIR_CHECK(view.rows == item.rows());
    rows += item.rows();
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
    set_tables(items, l);
    store_keys_and_values(pool);
    rotate_queries();
    attend(pool, l);
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
    row += item.rows();
    for (int r = row - item.logits; r < row; ++r, ++kept)
      if (r != kept) std::copy_n(x + product(r, config_.width), config_.width, x + product(kept, config_.width));
  }
  normalize(x, weights_.output_norm, wanted);
  const Job output[] = {{&weights_.output, logits}};
  multiply(w.normalized.data(), config_.width, wanted, output);
  return {logits, product(wanted, config_.vocabulary)};
}

}  // namespace kvasir

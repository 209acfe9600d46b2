#include "model/transformer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/transformer_workspace.h"

namespace kvasir {
namespace {

constexpr std::size_t kQ8BlockSums = 5 * sizeof(float);  // bytes beside a block's quants: scale and sums

}  // namespace

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
                                    floats(c.rope.dims) * (1 + several);
  const std::uint64_t quantized =
      product(groups, widest) + product(groups, (widest + kQ8Block - 1) / kQ8Block) * kQ8BlockSums;
  const std::uint64_t states = floats(attention) * 2 + floats(c.heads * 2) * 2;
  const std::uint64_t masks = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(entries) *
                              sizeof(SlotMask) * (c.sliding_window > 0 ? 2 : 1);
  const std::uint64_t rotations = static_cast<std::uint64_t>(kRotationCacheEntries) * floats_per_rotation(c) * 4;
  return activations + quantized + states + masks + rotations +
         static_cast<std::uint64_t>(c.vocabulary) * sizeof(float);
}

void Transformer::embed(std::span<const ForwardItem> items) {
  std::vector<TokenId> tokens;
  for (const ForwardItem& item : items) tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
  float* x = work_->residual.ensure(tokens.size() * static_cast<std::size_t>(config_.width));
  threads_.parallel_for(static_cast<int>(tokens.size()), [&](int row) {
    unpack_row(weights_.embedding, tokens[static_cast<std::size_t>(row)], x + product(row, config_.width));
  });
}

// Quantises rows of x into the workspace's q8 buffers.
void Transformer::quantize(const float* x, int inputs, int rows) {
  const int blocks = inputs / kQ8Block;
  const std::size_t group_places = product(blocks, kRowGroup);
  const std::size_t places = static_cast<std::size_t>((rows + kRowGroup - 1) / kRowGroup) * group_places;
  Workspace& w = *work_;
  const MutableQ8Rows all{w.q8_quants.ensure(places * kQ8Block), w.q8_scale.ensure(places),
                          w.q8_scaled_sum.ensure(places), w.q8_sum.ensure(places), w.q8_half_sum.ensure(2 * places)};
  threads_.parallel_for(rows, [&](int row) {
    const std::size_t group = static_cast<std::size_t>(row / kRowGroup) * group_places;
    kernels_.quantize_q8(x + product(row, inputs), inputs, all.at(group + static_cast<std::size_t>(row % kRowGroup)));
  });
}

// All jobs share the activations and run as one parallel region.
void Transformer::multiply(const float* x, int inputs, int rows, std::span<const Job> jobs) {
  int panels = 0;
  bool quantized = false;
  for (const Job& job : jobs) {
    panels += job.weights->panels();
    quantized = quantized || is_quantized(job.weights->type);
  }
  if (quantized) quantize(x, inputs, rows);
  const Workspace& w = *work_;
  const Q8Rows q8{w.q8_quants.data(), w.q8_scale.data(), w.q8_scaled_sum.data(), w.q8_sum.data(), w.q8_half_sum.data()};
  const Activations activations{rows, inputs, x, q8};
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
  add_biases(rows, jobs);
}

void Transformer::add_biases(int rows, std::span<const Job> jobs) {
  for (const Job& job : jobs) {
    if (job.bias == nullptr) continue;
    const int outputs = job.weights->outputs;
    threads_.parallel_for(rows, [&](int row) { kernels_.add(job.out + product(row, outputs), job.bias, outputs); });
  }
}

void Transformer::normalize(const float* x, const Norm& norm, int rows) {
  const int width = config_.width;
  float* out = work_->normalized.ensure(product(rows, width));
  const bool rms = config_.architecture->norm == NormKind::kRms;
  threads_.parallel_for(rows, [&](int row) {
    const float* from = x + product(row, width);
    float* to = out + product(row, width);
    if (rms) {
      kernels_.rms_norm(from, norm.weight, width, config_.norm_eps, to);
    } else {
      kernels_.layer_norm(from, norm.weight, norm.bias, width, config_.norm_eps, to);
    }
  });
}

// The RMSNorm of each head, in place.
void Transformer::normalize_heads(float* x, const float* weight, int heads, int rows) {
  if (weight == nullptr) return;
  const int dim = config_.head_dim;
  threads_.parallel_for(rows, [&](int row) {
    for (int head = 0; head < heads; ++head) {
      float* at = x + product(row, heads * dim) + product(head, dim);
      kernels_.rms_norm(at, weight, dim, config_.norm_eps, at);
    }
  });
}

// Queries, keys and values of the normalised rows.
void Transformer::project_attention(const LayerWeights& layer, int rows) {
  Workspace& w = *work_;
  const Job qkv[] = {{&layer.query.matrix, layer.query.bias, w.query.data()},
                     {&layer.key.matrix, layer.key.bias, w.key.data()},
                     {&layer.value.matrix, layer.value.bias, w.value.data()}};
  multiply(w.normalized.data(), config_.width, rows, qkv);
  normalize_heads(w.query.data(), layer.query_norm, config_.heads, rows);
  normalize_heads(w.key.data(), layer.key_norm, config_.kv_heads, rows);
}

// From the normalised rows to `projected`.
void Transformer::feed_forward(const LayerWeights& layer, int rows) {
  Workspace& w = *work_;
  const int ffn = config_.ffn;
  const Job up{&layer.up.matrix, layer.up.bias, w.up.data()};
  if (config_.architecture->feed_forward == FeedForward::kSwiGlu) {
    const Job gate_up[] = {{&layer.gate.matrix, layer.gate.bias, w.gate.data()}, up};
    multiply(w.normalized.data(), config_.width, rows, gate_up);
    threads_.parallel_for(rows, [&](int row) {
      float* hidden = w.up.data() + product(row, ffn);
      kernels_.swiglu(w.gate.data() + product(row, ffn), hidden, ffn, hidden);
    });
  } else {
    multiply(w.normalized.data(), config_.width, rows, {&up, 1});
    threads_.parallel_for(rows, [&](int row) { kernels_.gelu(w.up.data() + product(row, ffn), ffn); });
  }
  const Job down{&layer.down.matrix, layer.down.bias, w.projected.data()};
  multiply(w.up.data(), ffn, rows, {&down, 1});
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
    project_attention(layer, rows);
    set_tables(items, l);
    store_keys_and_values(pool);
    rotate_queries();
    attend(pool, l);
    const Job output{&layer.attention_output.matrix, layer.attention_output.bias, w.projected.data()};
    multiply(w.attention.data(), attention, rows, {&output, 1});
    // The feed-forward network sees the attention's result, or beside it what the attention saw.
    if (config_.parallel_residual) normalize(x, layer.ffn_norm, rows);
    add_projected();
    if (!config_.parallel_residual) normalize(x, layer.ffn_norm, rows);
    feed_forward(layer, rows);
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
  const Job output{&weights_.output, nullptr, logits};
  multiply(w.normalized.data(), config_.width, wanted, {&output, 1});
  return {logits, product(wanted, config_.vocabulary)};
}

}  // namespace kvasir

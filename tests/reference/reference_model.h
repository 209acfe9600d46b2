// The oracle for logits: transformers of the supported families in double precision, written for clarity from the
// published architectures and sharing no arithmetic with the engine.
// Thread-safety: immutable after construction.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "gguf/reader.h"

namespace kvasir::test {

// What one token sees when it is the newest. Keys are rotated afresh for every row, so the same key may stand at
// different positions in different rows.
struct RowView {
  std::vector<int> ids;           // indices of the visible tokens, ascending; the last is the row itself
  std::vector<double> positions;  // of each visible key
  double query_position = 0;
  std::vector<double> biases = {};  // added to the logit of each visible token; empty: none
};

// Plain causal attention.
std::vector<RowView> full_views(int n);

// A cache pruned after forward passes: with C = sinks + window and L the cache's length after a pass, once
// L - C >= every it is cut to its first `sinks` and last `window` tokens. Positions are those inside the cache, and
// a row sees all that is in the cache, itself included: at most C + every tokens where passes are single tokens.
// `passes` are the sizes of the first forward passes; after them every pass is one token.
std::vector<RowView> streaming_views(int n, int sinks, int window, int every, std::span<const int> passes = {});
std::vector<RowView> window_views(int n, int window, int every = 1);

// What a row sees in one layer with the query heads of one key head. Valid until the next call.
using ViewSource = std::function<const RowView&(int layer, int row, int kv_head)>;

// Called for each layer, row and head with the weights of that row's visible tokens.
using AttentionObserver = std::function<void(int layer, int row, int head, std::span<const double> weights)>;

// The angle that a pair is turned by.
struct Turn {
  double cosine;
  double sine;
};

class ReferenceModel {
 public:
  // REQUIRES: a well-formed model of a supported family (checked). Copies what it needs out of `file`.
  explicit ReferenceModel(const gguf::File& file);

  int vocab() const { return vocab_; }
  int layers() const { return static_cast<int>(layers_.size()); }

  // One row of logits for each token.
  std::vector<std::vector<double>> logits(std::span<const int> tokens) const;

  // A token's keys and values are those of its own row: what a later row sees of it carries what it had seen then,
  // also of tokens that are gone since. REQUIRES: one view per token.
  std::vector<std::vector<double>> logits(std::span<const int> tokens, std::span<const RowView> views,
                                          const AttentionObserver& observe = {}) const;
  // The same with a view for each layer and key head.
  std::vector<std::vector<double>> logits(std::span<const int> tokens, const ViewSource& view,
                                          const AttentionObserver& observe = {}) const;

 private:
  struct Matrix {
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::vector<double> values;  // by rows

    std::vector<double> times(std::span<const double> x) const;
    std::span<const double> row(std::size_t r) const { return std::span(values).subspan(r * columns, columns); }
  };
  struct Norm {
    std::vector<double> weight, bias;  // with a bias it is LayerNorm, else RMSNorm
  };
  struct Linear {
    Matrix weight;
    std::vector<double> bias;  // may be empty

    std::vector<double> of(std::span<const double> x) const;
  };
  struct Layer {
    Norm attn_norm, ffn_norm;
    Norm attn_norm_after, ffn_norm_after;  // of Gemma
    Linear q, k, v, o, gate, up, down;
    std::vector<double> q_norm, k_norm;  // may be empty
    std::vector<double> sinks;           // [heads], or empty
    // Of a mixture of experts, in place of gate, up and down.
    Linear router;
    std::vector<Linear> expert_gate, expert_up, expert_down;
    // Of a layer of the test family `decay` that holds a state (support/decay_mixer.h), which has no q, k, v.
    Linear mix_input, mix_gate;
    Matrix taps;                 // [channels][3]
    std::vector<double> decays;  // [channels], before the logistic function; empty: the layer has attention
  };
  static Matrix load(const gguf::File& file, std::string_view name, int rows, int columns);
  static std::vector<double> load_vector(const gguf::File& file, std::string_view name, int length);
  static Linear load_linear(const gguf::File& file, const std::string& name, int rows, int columns);
  Norm load_norm(const gguf::File& file, const std::string& name) const;
  Layer load_layer(const gguf::File& file, const std::string& prefix, int ffn) const;
  void read_rope(const gguf::File& file, const std::string& arch);
  std::vector<double> normalise(std::span<const double> x, const Norm& norm) const;
  void normalise_heads(std::vector<double>& x, std::span<const double> weight) const;
  void turn(std::span<double> head, const std::vector<Turn>& turns) const;
  std::vector<double> feed_forward(const Layer& layer, std::span<const double> x) const;
  std::vector<double> mix_experts(const Layer& layer, std::span<const double> x) const;
  static std::vector<Linear> load_experts(const gguf::File& file, const std::string& name, int count, int rows,
                                          int columns);
  static std::vector<double> decayed(const Layer& layer, std::span<const std::vector<double>> inputs);

  int d_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0, vocab_ = 0;
  bool neox_ = false;         // GPT-NeoX: one matrix for queries, keys and values, GELU
  bool gemma_ = false;        // Gemma 3: norms after, GELU-gated, layers with windows of their own
  bool oss_ = false;          // gpt-oss: clamped SwiGLU, windows on every other layer
  bool turn_halves_ = false;  // pairs (i, i + rotated / 2)
  bool parallel_residual_ = false;
  int window_ = 0;  // of native sliding-window attention; 0: none
  int experts_ = 0, experts_used_ = 0;
  int unrotated_ = 0;  // every so many layers one does not rotate queries and keys; 0: none
  int pattern_ = 0;    // every so many layers one sees everything, the others have the window; 0: all layers are alike
  double magnitude_ = 1;
  double epsilon_ = 0;
  std::vector<double> frequencies_;        // radians per position, one for each rotated pair
  std::vector<double> local_frequencies_;  // the same in layers with a window of their own
  std::vector<Layer> layers_;
  Matrix embedding_, output_;
  Norm output_norm_;
};

// The building blocks, for tests of them.
std::vector<double> rms_norm(std::span<const double> x, std::span<const double> weight, double epsilon);
std::vector<double> layer_norm(std::span<const double> x, std::span<const double> weight, std::span<const double> bias,
                               double epsilon);
void softmax(std::span<double> x);
std::vector<Turn> turns_at(double position, std::span<const double> frequencies);
// Turns each pair (2i, 2i+1) of x by turns[i]; what lies beyond the pairs stays.
void rotate(std::span<double> x, std::span<const Turn> turns);
// Turns each pair (i, i + turns.size()) of x by turns[i].
void rotate_halves(std::span<double> x, std::span<const Turn> turns);

// RMS of (got - want) over RMS of want; 0 when both are all zero. REQUIRES: equal sizes.
double rms_error_ratio(std::span<const float> got, std::span<const double> want);

}  // namespace kvasir::test

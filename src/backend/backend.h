// The operations of a transformer. A backend owns packed weights, the bytes of pages and the activations of a pass; the
// op graph of a model is written once over this interface (model/transformer.h) and knows no thread, page or layout.
//
// A pass: begin(batch), then operations in the order of the graph, each over all rows of the batch. Activations are
// named; each holds [rows][width] floats, where the width is that of what was last written.
//
// Contract: a row's results are bit-identical whatever other rows, sequences or threads are computed beside it, within
// one backend and kernel table.
// Thread-safety: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/activation_function.h"
#include "backend/batch.h"
#include "backend/expert_choice.h"
#include "backend/page_access.h"
#include "backend/page_store.h"
#include "backend/row_order.h"
#include "backend/state_mixer.h"
#include "kvasir/status.h"
#include "tensor/dtype.h"

namespace kvasir {

// How keys and queries are rotated by their positions (RoPE; Su et al., arXiv 2104.09864).
struct Rotation {
  int dims = 0;                             // rotated dimensions of a head
  std::vector<double> inverse_frequencies;  // [dims / 2]
  double magnitude = 1;                     // of new keys and of queries
};

// Sizes of a layer that operations depend on.
struct LayerShape {
  int heads = 0;  // query heads
  int kv_heads = 0;
  int head_dim = 0;
  int hidden = 0;         // of the feed-forward network
  bool windowed = false;  // some batches hide tokens beyond a sliding window
  int rotation = 0;       // index in BackendShape::rotations; BatchSequence::rotation_shift is added
  float scale = 0;        // of queries; 0: 1 / sqrt(head_dim)
  float softcap = 0;      // scores become softcap * tanh(score / softcap); 0: they stay
  // Queries are multiplied by 1 + temperature * ln(1 + floor(position / temperature_span)): the position of the token's
  // own key.
  float temperature = 0;
  std::int64_t temperature_span = 0;
  bool gated = false;  // kGate holds as much as the attention gives
  // Latent attention: keys are their own values, and queries and what attention gives pass through a matrix for each
  // head. rank 0: none.
  struct Latent {
    int query_rank = 0;  // of the product that gives queries; 0: they are of one matrix
    int rank = 0;        // numbers of a key that do not rotate, and of what is taken of the attention
    int plain = 0;       // numbers of a query that do not rotate, before its head's matrix
    int value = 0;       // numbers that a head gives, behind its matrix
  };
  Latent latent;
  int keys_of = -1;  // an earlier layer, whose pages it reads and to which it adds none; -1: it has its own
  // A mixture of experts; count 0: none.
  struct Experts {
    int count = 0;
    int used = 0;         // of a row
    int hidden = 0;       // of one
    bool beside = false;  // another network runs beside them, whose outputs kBeside holds
  };
  Experts experts;
  // Replaces attention, and the layer has no heads; null: the layer has attention.
  std::shared_ptr<const StateMixer> mixer;

  int group() const { return heads / kv_heads; }
};

// Sizes of a model, and of the adapters loaded for it, that operations depend on.
struct BackendShape {
  int width = 0;
  int vocabulary = 0;
  int per_layer = 0;                // numbers that each layer takes of a row of kPerLayer; 0: there is none
  std::vector<Rotation> rotations;  // that layers name, perhaps followed by others in their place for some sequences
  std::vector<LayerShape> layers;
  int adapter_ranks = 0;  // sum over adapters of the largest rank of each
};

enum class WeightId : std::uint32_t {};
inline constexpr WeightId kNoWeight{0xffffffff};

// A matrix or vector of the model, as a file holds it.
struct WeightPart {
  DType type = DType::kF32;
  int outputs = 0;
  int inputs = 1;  // of a vector: 1
  bool is_vector = false;
  RowOrder order;                    // which row of `bytes` is which output
  std::span<const std::byte> bytes;  // rows as in the file
};

// A low-rank product that an adapter adds to products with one matrix (LoRA; Hu et al., arXiv 2106.09685):
// factor * scale * B (A x), where the scale is the sequence's (AppliedAdapter).
struct LowRankPart {
  WeightId matrix = kNoWeight;
  float factor = 1;
  WeightPart a;  // [rank, inputs of the matrix]
  WeightPart b;  // [outputs of the matrix, rank]; its rows have the matrix's order
};

enum class Activation : int {
  kResidual,
  kNormalized,
  kQuery,
  kKey,
  kValue,
  kAttention,
  kGate,
  kUp,
  kProjected,
  kRouter,
  kBeside,    // of a network beside experts
  kPerLayer,  // of each token, some numbers for each layer
};
inline constexpr int kActivations = 12;
// The inputs of a StateMixer, in order.
inline constexpr Activation kMixerInputs[StateMixer::kMostInputs] = {
    Activation::kQuery, Activation::kKey, Activation::kValue, Activation::kGate, Activation::kUp};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Identifies the arithmetic over pages of a format: equal ids give equal bits.
  virtual std::string arithmetic_id(const PageFormat& format) const = 0;

  // -- Weights --

  // Bytes that load would allocate.
  virtual std::uint64_t weight_bytes(std::span<const WeightPart> parts) const = 0;

  struct LoadOptions {
    std::function<void(std::uint64_t bytes)> loaded;  // may be empty
    // Called once `count` bytes of a part from `first` on have been read, hardly any of which are read again. May be
    // empty.
    std::function<void(std::size_t part, std::uint64_t first, std::uint64_t count)> read;
    // Where to load to: weight_bytes(parts) bytes, 64-byte aligned, which must outlive the backend. Null: the backend
    // allocates them. `loaded_before`: the memory already holds what load made of the same parts, packed alike, and is
    // only read.
    std::byte* memory = nullptr;
    bool loaded_before = false;
  };
  // Called once. Part i becomes WeightId{i}. Errors: kResourceExhausted.
  virtual Status load(std::span<const WeightPart> parts, const LoadOptions& options) = 0;
  // Locks what was loaded in memory, so that it is never paged out. Errors: kResourceExhausted.
  virtual Status lock_weights() { return {}; }

  // -- Adapters --

  // Bytes that load_adapter would allocate.
  virtual std::uint64_t adapter_bytes(std::span<const LowRankPart> parts) const = 0;
  // Loads one more adapter: its number is the count of those before it. Each matrix at most once. `parts` are not used
  // after the call. REQUIRES: load() was called; ranks as BackendShape::adapter_ranks says. Errors: kResourceExhausted.
  virtual Status load_adapter(std::span<const LowRankPart> parts) = 0;

  // -- Pages --

  // Returns a new store of pages for a cache of this model. The backend must outlive it.
  virtual std::unique_ptr<PageStore> new_page_store() = 0;

  // -- A pass --

  // The batch that all operations up to the next begin refer to. `store` holds the batch's pages.
  struct Pass {
    const Batch* batch = nullptr;
    PageStore* store = nullptr;
  };
  virtual void begin(const Pass& pass) = 0;

  // to = the rows of `embedding` [vocabulary][width of `to`] of the batch's tokens, times `scale`.
  virtual void embed(WeightId embedding, float scale, Activation to) = 0;
  // kResidual += the row of `positions` [positions][width] for the position at which the sequence's first table has the
  // token's key. Positions beyond the last row have that row.
  virtual void add_positions(WeightId positions) = 0;

  // to = rms or layer norm of `from` (KernelTable::rms_norm, layer_norm). The bias may be kNoWeight: zeros.
  virtual void rms_norm(Activation from, WeightId weight, float eps, Activation to) = 0;
  virtual void layer_norm(Activation from, WeightId weight, WeightId bias, float eps, Activation to) = 0;
  // The RMSNorm of each of `heads` heads, in place. The weight may be kNoWeight: ones.
  virtual void rms_norm_heads(Activation x, WeightId weight, int heads, float eps) = 0;

  struct Product {
    WeightId matrix = kNoWeight;
    WeightId bias = kNoWeight;  // or none
    Activation to = Activation::kProjected;
  };
  // to = matrix * from + bias, for each product; plus what the adapters of a row's sequence add, one after the other.
  virtual void multiply(Activation from, std::span<const Product> products) = 0;

  // A matrix for each of some heads: those of head h are `first` plus h.
  struct HeadProduct {
    WeightId first = kNoWeight;
    int heads = 0;
    int skipped = 0;  // numbers of each head's part of `from` that come before those to multiply
  };
  // to = for each head its matrix times its part of `from` [heads][skipped + inputs].
  virtual void multiply_heads(Activation from, const HeadProduct& product, Activation to) = 0;
  // Ranges of a matrix's columns that multiply the same vector: `count` columns for each head, one head after the
  // other.
  struct HeadColumns {
    int first = 0;  // the first head's first column
    int heads = 1;
    int count = 0;
  };
  // norms[i] = mean over the heads of the L1 norm of the head's columns times vectors[i]. `vectors` is [norms.size()]
  // [columns.count]. Adapters do not count. Allocates at most norm_bytes. May be called between passes.
  virtual void product_norms(WeightId matrix, const HeadColumns& columns, std::span<const float> vectors,
                             std::span<double> norms) = 0;
  // Returns the most bytes that product_norms allocates for a matrix with so many inputs.
  static std::uint64_t norm_bytes(int inputs, const HeadColumns& columns) {
    const auto floats = static_cast<std::uint64_t>(inputs) +
                        static_cast<std::uint64_t>(columns.heads) * static_cast<std::uint64_t>(columns.count);
    return static_cast<std::uint64_t>(kNormOutputs) * floats * sizeof(float);
  }
  static constexpr int kNormOutputs = 128;  // product_norms takes this many outputs of the matrix at a time
  // to = for each head its part of a, then its part of b.
  virtual void join_heads(Activation a, Activation b, int heads, Activation to) = 0;

  virtual void activate(ActivationFunction function, Activation gate, Activation up) = 0;  // up = function(gate) * up
  virtual void activate(ActivationFunction function, Activation x) = 0;                    // x = function(x)
  virtual void add(Activation to, Activation x) = 0;                                       // to += x
  struct Columns {
    int first = 0;
    int count = 0;  // 0: all
  };
  virtual void copy(Activation from, Columns columns, Activation to) = 0;  // to = those columns of from
  // x *= factor * by[0]; `by` may be kNoWeight: 1.
  virtual void scale(Activation x, float factor, WeightId by) = 0;
  // Multiplies each row of x by sigmoid(weights . the row of `gate`).
  virtual void scale_rows(Activation x, Activation gate, WeightId weights) = 0;

  // The feed-forward networks of a mixture of experts. Matrices and biases of expert e are those of expert 0 plus e.
  struct Experts {
    struct Matrix {
      WeightId first = kNoWeight;
      WeightId bias = kNoWeight;  // vectors, or none
    };
    ExpertChoice choice;
    int count = 0;
    WeightId selection_bias = kNoWeight;  // [count], or none
    WeightId scales = kNoWeight;          // [count]: factors of the experts' weights; or none
    ActivationFunction function = ActivationFunction::kSilu;
    Matrix gate, up, down;
    bool adds = false;
  };
  // kProjected = the weighted sum of down(function(gate(x)) * up(x)) over the experts that the router's outputs in
  // kRouter choose for a row x of kNormalized, in ascending order of experts; added to what is there, if `adds`. Only
  // the weights of chosen experts are read, and those of each once.
  virtual void run_experts(const Experts& experts) = 0;

  // Rotates kKey and writes it and kValue to the batch's slots of the layer's lanes.
  virtual void store(int layer) = 0;
  struct AttentionWeights {
    WeightId sinks = kNoWeight;  // [heads]: a number whose exponential is added to the softmax's sum; or none
    WeightId query_scales[2] = {kNoWeight, kNoWeight};  // [head_dim]: what rotated queries are multiplied by; or none
  };
  // kAttention = attention of kQuery over the layer's lanes. Listeners of the sequences are told.
  virtual void attend(int layer, const AttentionWeights& weights) = 0;
  // kAttention = the output of the layer's mixer over kMixerInputs. Advances the states of the batch's sequences.
  virtual void mix(int layer, std::span<const WeightId> parameters) = 0;

  // Rows sequence by sequence, valid until the next pass.
  struct Outputs {
    std::span<const float> logits;  // [rows whose logits are wanted][vocabulary]
    std::span<const float> hidden;  // [rows whose hidden states are wanted][width]
  };
  struct OutputWeights {
    WeightId matrix = kNoWeight;
    WeightId norm = kNoWeight;
    WeightId norm_bias = kNoWeight;
    bool layer_norm = false;
    float eps = 0;
    float scale = 1;    // of logits
    float softcap = 0;  // then logits become softcap * tanh(logit / softcap); 0: they stay
  };
  // Hidden states: the norm (as rms_norm, or layer_norm) of rows of kResidual. Logits: the output matrix times hidden
  // states, as multiply, then scaled. Overwrites kResidual.
  virtual Outputs outputs(const OutputWeights& weights) = 0;

  // -- Memory --

  struct WorkspaceRequest {
    int rows = 0;
    int logits = 1;  // rows whose logits are wanted
    int sequences = 1;
    int slots = 32;
    // The page tables of one sequence, for each kind of layer whose tables are filled alike.
    struct Tables {
      int layer = 0;                      // one of those layers
      int frames = 1;                     // of a page table: the mean over the rows, rounded up; without gaps, the most
      int of_layer = 1;                   // page tables of a layer
      int all = 1;                        // page tables of all these layers
      std::int64_t entries = 0;           // of all frames of a page table, at most
      bool gaps = false;                  // columns leave between others, so that ordinals may be far apart
      std::size_t staged_page_bytes = 0;  // of a page in 16 bits, where pages are encoded
      int observed_rows = 0;              // rows of one sequence that its listener wants, at most
      int reductions = 0;                 // that a listener wants
      int selected_rows = 0;              // rows of one sequence that choose what they read, at most
      bool weights = false;               // some listener wants raw weights
      bool recalls = false;               // last rows of sequences attend to pages beside their tables'
    };
    std::vector<Tables> tables = {Tables{}};
  };
  // Returns the most bytes that passes of up to `rows` rows take beside weights, pages and the batch.
  virtual std::uint64_t workspace_bytes(const WorkspaceRequest& request) const = 0;
};

}  // namespace kvasir

// The arithmetic of inference, as a table of plain functions over plain views.
//
// Contract of every kernel:
//  - a row's (query's) result is bit-identical whatever other rows, panels or threads are computed beside it;
//  - it never allocates, locks or logs; it reads and writes only what its views name;
//  - the generic table is the specification; any other agrees with it within rounding (tests/backend/cpu/kernels).
//    KernelTable::rounds_bf16_rows and attention_rounding say where the rounding is that of bf16. What is infinite in
//    one table may be NaN in another.
// Thread-safety: all functions are pure over their arguments.
// Shapes are written [slowest, ..., fastest].
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/activation_function.h"
#include "backend/page_format.h"
#include "backend/row_order.h"
#include "backend/segment_scores.h"
#include "tensor/dtype.h"

namespace kvasir {

// Weights are packed once, at load, into panels of 16 outputs, so that one row of activations is multiplied with 16
// outputs per instruction and each output's sum runs over the inputs in order, in one accumulator.
//   F32, F16, BF16: [panel][input][16 outputs]
//   quantised:      [panel][block], the blocks of 16 outputs interleaved (quantized_layout.h)
// Outputs beyond `outputs` in the last panel are zero. The size in bytes equals the file's, but for that padding.
inline constexpr int kPanel = 16;
inline constexpr int kQ8Block = 32;

struct PackedMatrix {
  DType type = DType::kF32;
  int outputs = 0;
  int inputs = 0;
  const std::byte* data = nullptr;  // 64-byte aligned

  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  std::size_t panel_bytes() const;
};

// Rows of activations, in the form the weights ask for: `f32` [rows, inputs] for F32, F16 and BF16; the quantised form
// for quantised weights. Rows are quantised per block of 32: scale = max|x| / 127, q = x / scale rounded to nearest
// even. A block whose maximum is below kQ8Smallest (127 / maximum might overflow) has all q = 0; one that holds an
// infinity or NaN has q = 0 and scale = NaN, so that it shows in the product.
inline constexpr float kQ8Smallest = 1e-36F;
inline constexpr int kRowGroup = 16;  // quantised rows are stored in groups of this many

// Blocks of rows, [row / 16][block][row % 16] each. The sums cancel the offset of weights that are multiplied as w +
// 128 (or w + a fraction of 128), and are multiplied with minima.
template <class Byte, class Float, class Int>
struct Q8Blocks {
  Byte* quants = nullptr;       // [32] each
  Float* scale = nullptr;       // NaN: not finite
  Float* scaled_sum = nullptr;  // scale * (sum of the block)
  Int* sum = nullptr;           // -128 * (sum of the block)
  Int* half_sum = nullptr;      // -128 * (sum of the first half, of the second), [2] each

  // Returns the blocks from number `places` on. Inline everywhere: kernels of all instruction sets use it.
  [[gnu::always_inline]] Q8Blocks at(std::size_t places) const {
    return {quants + places * kQ8Block, scale + places, scaled_sum + places, sum + places, half_sum + 2 * places};
  }
};
using Q8Rows = Q8Blocks<const std::int8_t, const float, const std::int32_t>;
using MutableQ8Rows = Q8Blocks<std::int8_t, float, std::int32_t>;

struct Activations {
  int rows = 0;
  int inputs = 0;
  const float* f32 = nullptr;
  Q8Rows q8;
};

// The pages that are likely to be read after those of a partial, to be fetched meanwhile; null where not known.
struct NextPages {
  static constexpr int kMost = 4;
  const std::byte* of[kMost] = {};
};

// Queries of one lane over a run of entries of one frame: a partial of attention. Products with encoded pages are sums
// of integers (integer_products.h): queries and weights are rounded to 16 bits a page, codes are not decoded.
struct AttentionPartial {
  int head_dim = 0;
  int slots = 0;
  int rows = 0;                  // query rows
  int group = 1;                 // query heads per row that share the lane
  const float* q = nullptr;      // [rows][group][head_dim], rotated to the frame and scaled; row stride below
  std::size_t q_row_stride = 0;  // in floats
  int entries = 0;               // at most kPartialEntries
  const std::byte* const* pages = nullptr;  // [entries]
  NextPages next_pages;
  // Bit e: entry e is weighed together with entry e - 1, in one step (integer_products.h), if both are in i16.
  // REQUIRES: the entries of a step have at most kStepSlots slots.
  std::uint32_t joined = 0;
  const PageFormat* const* formats = nullptr;  // [entries]: of head_dim and slots, otherwise any
  // [rows][entries], live slots a row may see; row stride below. REQUIRES: no bit at or beyond `slots`.
  const SlotMask* masks = nullptr;
  std::size_t mask_row_stride = 0;
  // [entries]: numbers to add to the scores of an entry's slots, [slots], or null. Null: no entry has any.
  const float* const* biases = nullptr;
  // Scores become softcap * tanh(score / softcap), before biases; 0: they stay.
  float softcap = 0;
  // Output for observe_weights, or null: exp(score - highest score up to this entry) for each live slot, [rows *
  // group][entries][slots], and that highest score, [rows * group][entries]; strides in floats.
  float* weights = nullptr;
  std::size_t weight_stride = 0;
  float* weight_maxima = nullptr;
  std::size_t weight_maximum_stride = 0;
};

// An entry whose live tokens are not in a page: rows[i] has the key and behind it the value, head_dim elements each, of
// the token at the i-th slot in `slots`.
struct GatheredEntry {
  SlotMask slots = 0;
  const std::byte* const* rows = nullptr;
};

// Holds the raw attention weights of one query. Complete once attend has run for all of the query's partials.
struct ObservedQuery {
  int entries = 0;
  int slots = 0;                         // per entry
  const SlotMask* masks = nullptr;       // [entries]
  float* weights = nullptr;              // [entries][slots]
  const float* weight_maxima = nullptr;  // [entries]
  float maximum = 0;                     // of the merged state
  float sum = 0;
};

// A mergeable state of attention: over what a query saw so far, the maximum score, the sum of exp(score - maximum), and
// the sum of values weighted alike (FlashAttention-2, Dao 2023, section 3.1). Starts at -inf, 0, 0.
struct AttentionState {
  float* maximum = nullptr;   // [rows * group]
  float* sum = nullptr;       // [rows * group]
  float* weighted = nullptr;  // [rows * group][head_dim]
};

inline constexpr int kPartialEntries = 16;  // entries per partial; fixes the order of sums, so it is part of the result

// How weights are packed for a table's matmul. Rows have as many bytes packed as in the file.
struct WeightPacking {
  std::string_view name;  // changes whenever the packed bytes do

  // Bytes of the packed form.
  std::size_t (*bytes)(DType type, int outputs, int inputs);

  // Packs panels [panel_begin, panel_end) of the matrix whose outputs are the rows that `order` says into `out` (the
  // start of the whole packed matrix). `rows` is [rows, inputs] as in the file. REQUIRES: inputs a multiple of the
  // type's block.
  void (*pack)(const PackedMatrix& shape, const std::byte* rows, const RowOrder& order, int panel_begin, int panel_end,
               std::byte* out);

  // Reads one output's row (for embeddings) back as floats.
  void (*unpack_row)(const PackedMatrix& matrix, int output, float* out);
};

// In panels of 16 outputs: see kPanel.
extern const WeightPacking kPanelPacking;

struct KernelTable {
  std::string_view name;
  std::string_view arithmetic;  // tables of the same arithmetic give the same bits
  // Products with BF16 weights round the row to bf16 as well.
  bool rounds_bf16_rows = false;
  // Relative error of products in attention over pages of 16 bits, beyond the rounding of floats.
  float attention_rounding = 0.0F;
  // Attention is faster over pages of i16 than of f16, where heads are a multiple of 16.
  bool prefers_words = false;
  const WeightPacking* packing;

  // out[r][o] for panels [panel_begin, panel_end): sum over i of weight[o][i] * activation[r][i].
  // `out` is [rows, out_stride].
  void (*matmul)(const PackedMatrix& weights, const Activations& activations, int panel_begin, int panel_end,
                 float* out, std::size_t out_stride);

  // Quantises one row of `inputs` floats (a multiple of 32) from its place in its group of 16 on: block b goes to
  // place.at(16 * b).
  void (*quantize_q8)(const float* x, int inputs, const MutableQ8Rows& place);

  // out = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, equation 4). x and out may be the same. No weight,
  // if that is null.
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);

  // out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias (Ba et al. 2016, equation 4; the variance is the mean
  // of squares of what is left after the mean). No bias, if that is null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int n, float eps, float* out);

  // out[i] = function(x[i]) * factor[i] (a gated unit: Shazeer 2020, equation 5); without a factor, if that is null:
  // function(x[i]). x, factor and out may be the same.
  void (*activate)(ActivationFunction function, const float* x, const float* factor, int n, float* out);

  // x += y
  void (*add)(float* x, const float* y, int n);

  // Rotates the pairs (2i, 2i+1) of each head by the angle whose cosine and sine are given for i < rotary / 2, then
  // multiplies all by `scale`. x and out are [heads, head_dim]; may be the same.
  void (*rope)(const float* x, int heads, int head_dim, int rotary, const float* cosine, const float* sine, float scale,
               float* out);

  // Writes one token's key and value (head_dim floats each) into a slot of a page; of a latent one, the key alone.
  void (*store_kv)(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value);

  // Rotates the keys of the slots in `slots` in place by the angle given as for rope.
  void (*rotate_keys)(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                      const float* sine);

  // Copies the slots in `from_slots` of one page to the consecutive slots of another from to_slot on, their keys
  // rotated by the angle given as for rope (cosine nullptr: not at all). `from` and `to` may be the same page if
  // to_slot is at or before the first slot copied.
  void (*move_slots)(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                     int rotary, const float* cosine, const float* sine);

  // Opens a page whose values are its keys to floats: keys [head_dim][slots], values [slots][head_dim]. The same bits
  // in every table. REQUIRES: format.latent.
  void (*open_latent)(const PageFormat& format, const std::byte* page, float* out);

  // Adds the entries of a partial to a state, entry by entry. REQUIRES: formats not latent.
  void (*attend)(const AttentionPartial& partial, const AttentionState& state);

  // As attend, of gathered entries, `entries` [partial.entries]; the partial's pages are not read. The same bits as
  // attend gives of pages with these rows at their slots. REQUIRES: formats of floats; no mask with a slot that its
  // entry lacks.
  void (*attend_gathered)(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state);

  // into = into merged with from; both of `queries` queries of head_dim.
  void (*merge)(const AttentionState& into, const AttentionState& from, int queries, int head_dim);

  // out[q][d] = weighted[q][d] / sum[q]; zero where nothing was seen.
  void (*finish)(const AttentionState& state, int queries, int head_dim, float* out);

  // Turns a query's raw weights into softmax weights, in place: those of live slots, in order, one behind the other
  // from query.weights on. Returns how many.
  int (*observe_weights)(const ObservedQuery& query);

  // See segment_scores.h. The same bits in every table.
  ScoreSegments score_segments;

  // The sum of n floats in double: 16 interleaved sums, then those pairwise. The same bits in every table.
  double (*sum_weights)(const float* weights, int n);

  // mass[i] += factor * weights[i], in double, multiplied, then added. The same bits in every table.
  void (*add_weights)(const float* weights, int n, double factor, double* mass);
};

const KernelTable& generic_kernels();
// nullptr where the build or this machine lacks the instructions.
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();
const KernelTable* amx_kernels();

// "auto" gives the fastest table this machine runs; nullptr if the name is unknown or cannot run here.
const KernelTable* find_kernels(std::string_view name);
std::vector<std::string_view> kernel_names();  // those that run here

}  // namespace kvasir

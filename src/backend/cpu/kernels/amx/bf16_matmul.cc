// Products of BF16 weights with rows rounded to bf16. Many rows use the tile unit. It multiplies two groups of 16 rows
// by two panels, 32 inputs at a time, and keeps the sums in tiles. Few rows use vectors, since rearranging the weights
// for the tile unit would take longer than reading them; the sums and their order, and so the bits, are the same.
#include <xmmintrin.h>

#include <algorithm>

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/float_panels.h"

namespace kvasir::amx {
namespace {

constexpr int kLeastTileRows = 7;  // with fewer, vectors are faster
constexpr int kTileInputs = 32;
constexpr int kTileElements = kRowGroup * kTileInputs;  // of rows, and of weights
constexpr int kSums = kRowGroup * kPanel;

// A span is the rows and panels whose sums are kept at once. It is computed in blocks of inputs and panels: the weights
// of a block fit the second-level cache, and two groups of rows and two panels of it the first. The weights of a block
// for few rows fit the first.
constexpr int kSpanGroups = 16;
constexpr int kSpanPanels = 16;
constexpr int kBlockTiles = 8;
constexpr int kBlockInputs = kBlockTiles * kTileInputs;
constexpr int kBlockPanels = 8;
constexpr int kFewGroups = 2;
constexpr int kFewPanels = 2;

constexpr std::size_t kPrefetchBytes = 8192;
constexpr std::size_t kInputBytes = kPanelInputBytes<DType::kBF16>;

using Tile = std::uint16_t[kTileElements];
using Sums = float[kSums];

// Interleaves two inputs of a panel, [input][output], to [output][input], as the tile unit takes them.
[[gnu::always_inline]] inline __m512i pair_up(__m512i two) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), two);
}

// Writes `inputs` inputs of a panel as tiles. Fills the last one with zeros.
void open(const std::byte* from, int inputs, Tile* tiles) {
  for (; inputs >= kTileInputs; inputs -= kTileInputs, from += kTileInputs * kInputBytes, ++tiles) {
#pragma GCC unroll 16
    for (int line = 0; line < kRowGroup; ++line) {
      const std::byte* two = from + line * kTileRowBytes;
      _mm_prefetch(reinterpret_cast<const char*>(two + kPrefetchBytes), _MM_HINT_T1);
      _mm512_store_si512(*tiles + line * kTileInputs, pair_up(_mm512_loadu_si512(two)));
    }
  }
  if (inputs == 0) return;
  for (int input = 0; input < kTileInputs; input += 2) {
    const int left = inputs - input;
    const __mmask32 mask = left > 1 ? 0xffffffffu : left > 0 ? 0xffffu : 0;
    _mm512_store_si512(*tiles + input * kPanel, pair_up(_mm512_maskz_loadu_epi16(mask, from + input * kInputBytes)));
  }
}

// Multiplies one or two groups of rows by one or two panels over `tiles` tiles of inputs. Starts from zero if `first`,
// otherwise from `sums`. The second group, panel and sums are as far behind the first as in Multiplication's arrays.
template <bool kTwoGroups, bool kTwoPanels>
void multiply_tiles(const Tile* a, const Tile* b, int tiles, bool first, Sums* sums) {
  const Tile* more_a = a + kBlockTiles;
  const Tile* more_b = b + kBlockTiles;
  Sums* more_sums = sums + kSpanPanels;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums[0], kTileRowBytes);
    if constexpr (kTwoPanels) _tile_loadd(1, sums[1], kTileRowBytes);
    if constexpr (kTwoGroups) _tile_loadd(2, more_sums[0], kTileRowBytes);
    if constexpr (kTwoGroups && kTwoPanels) _tile_loadd(3, more_sums[1], kTileRowBytes);
  }
  for (int t = 0; t < tiles; ++t) {
    _tile_loadd(4, a[t], kTileRowBytes);
    _tile_loadd(6, b[t], kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoPanels) {
      _tile_loadd(7, more_b[t], kTileRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoGroups) {
      _tile_loadd(5, more_a[t], kTileRowBytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoGroups && kTwoPanels) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums[0], kTileRowBytes);
  if constexpr (kTwoPanels) _tile_stored(1, sums[1], kTileRowBytes);
  if constexpr (kTwoGroups) _tile_stored(2, more_sums[0], kTileRowBytes);
  if constexpr (kTwoGroups && kTwoPanels) _tile_stored(3, more_sums[1], kTileRowBytes);
}

// Rounds `inputs` inputs of a row, at most a tile's, to bf16; zeros follow.
[[gnu::always_inline]] inline __m512i round_inputs(const float* x, int inputs) {
  const unsigned mask = inputs < kTileInputs ? (1u << inputs) - 1 : 0xffffffffu;
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + kPanel);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Makes vectors of this thread treat denormals as the tile unit does, as zero, until it is destroyed.
class ZeroDenormals {
 public:
  ZeroDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kDenormalsAreZero | kFlushToZero); }
  ZeroDenormals(const ZeroDenormals&) = delete;
  ZeroDenormals& operator=(const ZeroDenormals&) = delete;
  ~ZeroDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kDenormalsAreZero = 0x40;
  static constexpr unsigned kFlushToZero = 0x8000;

  unsigned before_;
};

// The tiles that float_panels.h asks for, computed by vectors as TDPBF16PS does.
struct VectorTiles {
  static constexpr int kGroupRows = kRowGroup;

  template <DType /*kType*/, int kRows, int kPanels>
  static void multiply(const FloatTile& tile) {
    alignas(64) float x[kRows][kTileInputs];
    for (int begin = 0; begin < tile.inputs; begin += kTileInputs) {
      const int inputs = std::min(kTileInputs, tile.inputs - begin);
      for (int r = 0; r < kRows; ++r)
        write_rounded(tile.x + static_cast<std::size_t>(r) * tile.x_stride + begin, inputs, x[r]);
      __m512 even[kRows][kPanels];
      __m512 odd[kRows][kPanels];
      for (int r = 0; r < kRows; ++r)
        for (int p = 0; p < kPanels; ++p) even[r][p] = odd[r][p] = _mm512_setzero_ps();
      const std::byte* w = tile.weights + static_cast<std::size_t>(begin) * kInputBytes;
      for (int i = 0; i < inputs; i += 2, w += 2 * kInputBytes) {
        add_input<kRows, kPanels>(w, tile.panel_bytes, x, i, even);
        if (i + 1 < inputs) add_input<kRows, kPanels>(w + kInputBytes, tile.panel_bytes, x, i + 1, odd);
      }
      for (int r = 0; r < kRows; ++r)
        for (int p = 0; p < kPanels; ++p) {
          // Adds +0, as the zeros at the end of a tile do: it turns -0 into +0.
          if (inputs < kTileInputs) {
            even[r][p] = _mm512_add_ps(even[r][p], _mm512_setzero_ps());
            odd[r][p] = _mm512_add_ps(odd[r][p], _mm512_setzero_ps());
          }
          float* sum = tile.sums + (r * kPanels + p) * kPanel;
          _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even[r][p], odd[r][p])));
        }
    }
  }

 private:
  [[gnu::always_inline]] static void write_rounded(const float* from, int inputs, float* to) {
    const __m512i both = round_inputs(from, inputs);
    for (int half = 0; half < 2; ++half) {
      const __m256i bits = half == 0 ? _mm512_castsi512_si256(both) : _mm512_extracti64x4_epi64(both, 1);
      _mm512_store_si512(to + half * kPanel, _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
  }

  template <int kRows, int kPanels>
  [[gnu::always_inline]] static void add_input(const std::byte* w, std::size_t panel_bytes,
                                               const float (*x)[kTileInputs], int input, __m512 (*sums)[kPanels]) {
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* place = w + static_cast<std::size_t>(p) * panel_bytes;
      if constexpr (kRows > 1) _mm_prefetch(reinterpret_cast<const char*>(place + kPrefetchBytes), _MM_HINT_T1);
      const __m512 weights = load16<KvType::kBF16>(place);
      for (int r = 0; r < kRows; ++r) sums[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][input]), weights, sums[r][p]);
    }
  }
};

void multiply_few(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                  std::size_t out_stride) {
  const ZeroDenormals zero_denormals;
  // Tiles whose sums, of two chains each, just fit the registers.
  if (x.rows == 1)
    for (; panel + 8 <= panel_end; panel += 8)
      float_panels<VectorTiles, DType::kBF16, 8, 1>(weights, x, panel, out, out_stride);
  if (x.rows <= 3)
    for (; panel + 4 <= panel_end; panel += 4)
      float_panels<VectorTiles, DType::kBF16, 4, 3>(weights, x, panel, out, out_stride);
  for (; panel + 2 <= panel_end; panel += 2)
    float_panels<VectorTiles, DType::kBF16, 2, 6>(weights, x, panel, out, out_stride);
  for (; panel < panel_end; ++panel) float_panels<VectorTiles, DType::kBF16, 1, 6>(weights, x, panel, out, out_stride);
}

class Multiplication {
 public:
  Multiplication(const PackedMatrix& weights, const Activations& x, float* out, std::size_t out_stride)
      : weights_(weights), x_(x), out_(out), out_stride_(out_stride) {}

  void multiply(int panel_begin, int panel_end) {
    const int groups = (x_.rows + kRowGroup - 1) / kRowGroup;
    for (int panel = panel_begin; panel < panel_end; panel += kSpanPanels)
      for (int group = 0; group < groups; group += kSpanGroups)
        multiply_span(panel, std::min(kSpanPanels, panel_end - panel), group, std::min(kSpanGroups, groups - group));
  }

 private:
  void multiply_span(int panel, int panels, int group, int groups) {
    const int together = groups <= kFewGroups ? kFewPanels : kBlockPanels;
    for (int input = 0; input < weights_.inputs; input += kBlockInputs) {
      const int inputs = std::min(kBlockInputs, weights_.inputs - input);
      round_rows(group * kRowGroup, std::min(groups * kRowGroup, x_.rows - group * kRowGroup), input, inputs);
      for (int p = 0; p < panels; p += together)
        multiply_block(panel, p, std::min(p + together, panels), groups, input, inputs);
    }
    compiler_fence();
    for (int g = 0; g < groups; ++g)
      for (int p = 0; p < panels; ++p) copy_out(sums_[g][p], panel + p, (group + g) * kRowGroup);
  }

  // Rounds `inputs` inputs of rows [first, first + rows). The rest of the last group is left as it is: a row of sums
  // depends on its own row alone.
  void round_rows(int first, int rows, int input, int inputs) {
    for (int row = 0; row < rows; ++row) {
      const float* from = x_.f32 + static_cast<std::size_t>(first + row) * static_cast<std::size_t>(x_.inputs) + input;
      for (int i = 0; i < inputs; i += kTileInputs)
        _mm512_store_si512(rows_[row / kRowGroup][i / kTileInputs] + row % kRowGroup * kTileInputs,
                           round_inputs(from + i, std::min(kTileInputs, inputs - i)));
    }
  }

  // Multiplies all rows of the span by panels [begin, end) of those from `panel` on.
  void multiply_block(int panel, int begin, int end, int groups, int input, int inputs) {
    for (int p = begin; p < end; ++p)
      open(weights_.data + (static_cast<std::size_t>(panel + p) * static_cast<std::size_t>(weights_.inputs) +
                            static_cast<std::size_t>(input)) *
                               kInputBytes,
           inputs, open_[p - begin]);
    compiler_fence();
    const int tiles = (inputs + kTileInputs - 1) / kTileInputs;
    for (int g = 0; g < groups; g += 2)
      for (int p = begin; p < end; p += 2) {
        const bool two_groups = g + 1 < groups;
        const bool two_panels = p + 1 < end;
        const auto block = two_groups   ? two_panels ? multiply_tiles<true, true> : multiply_tiles<true, false>
                             : two_panels ? multiply_tiles<false, true>
                                        : multiply_tiles<false, false>;
        block(rows_[g], open_[p - begin], tiles, input == 0, sums_[g] + p);
      }
  }

  void copy_out(const Sums& sums, int panel, int row) {
    const __mmask16 mask = outputs_of(weights_, panel);
    const int rows = std::min(kRowGroup, x_.rows - row);
    for (int r = 0; r < rows; ++r)
      _mm512_mask_storeu_ps(out_ + static_cast<std::size_t>(row + r) * out_stride_ + panel * kPanel, mask,
                            _mm512_load_ps(sums + r * kPanel));
  }

  const PackedMatrix& weights_;
  const Activations& x_;
  float* out_;
  std::size_t out_stride_;
  alignas(64) Tile rows_[kSpanGroups][kBlockTiles];
  alignas(64) Tile open_[kBlockPanels][kBlockTiles];
  alignas(64) Sums sums_[kSpanGroups][kSpanPanels];
};
static_assert(sizeof(Multiplication) < 512 * 1024, "it is on the stack of a worker thread");

}  // namespace

void bf16_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                 std::size_t out_stride) {
  if (x.rows < kLeastTileRows) return multiply_few(weights, x, panel_begin, panel_end, out, out_stride);
  const Tiles tiles(kTileRowBytes);
  Multiplication(weights, x, out, out_stride).multiply(panel_begin, panel_end);
}

}  // namespace kvasir::amx

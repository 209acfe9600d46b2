// Products of BF16 weights with rows rounded to bf16. Many rows go through the tile unit: blocks of two groups of 16
// rows times two panels, whose sums stay in tiles while 32 inputs after 32 pass. Few rows wait for memory, and need not
// open weights for the tile unit: vectors do the same sums in the same order, to the bit.
#include <xmmintrin.h>

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/float_panels.h"

namespace kvasir::amx {
namespace {

constexpr int kLeastTileRows = 7;  // with fewer, vectors are faster
constexpr int kTileInputs = 32;
constexpr int kTileElements = kRowGroup * kTileInputs;  // of rows, and of weights
constexpr int kSums = kRowGroup * kPanel;

// Sums of a span wait while its inputs pass, a chunk at a time: opened weights of a chunk stay in the second cache, and
// the rows they meet in the first. Few rows wait for memory: what is opened for them stays in the first cache.
constexpr int kSpanGroups = 16;
constexpr int kSpanPanels = 16;
constexpr int kChunkTiles = 8;
constexpr int kChunkInputs = kChunkTiles * kTileInputs;
constexpr int kChunkPanels = 8;
constexpr int kFewGroups = 2;
constexpr int kFewPanels = 2;

constexpr std::size_t kPrefetchBytes = 8192;
constexpr std::size_t kInputBytes = kPanel * sizeof(std::uint16_t);

using Tile = std::uint16_t[kTileElements];
using Sums = float[kSums];

int least(int a, int b) {
  return a < b ? a : b;
}

// Two inputs of a panel, [input][output], as the tile unit takes them: [output][input].
[[gnu::always_inline]] inline __m512i pair_up(__m512i two) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), two);
}

// Opens `inputs` inputs of a panel; zeros stand for those that are wanting in the last tile.
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

// Two groups of rows, or one, times two panels, or one: adds `tiles` tiles of inputs to their sums, which are set if
// `first`. Rows, weights and sums of the second are kChunkTiles, or kSpanPanels, behind those of the first.
template <bool kTwoGroups, bool kTwoPanels>
void multiply_block(const Tile* a, const Tile* b, int tiles, bool first, Sums* sums) {
  const Tile* more_a = a + kChunkTiles;
  const Tile* more_b = b + kChunkTiles;
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

[[gnu::always_inline]] inline __m512i rounded(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// The tile unit takes denormals as zero and gives zero for them; vectors do so while this lives.
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

// What float_panels.h asks for: the sums of TDPBF16PS on vectors.
struct VectorTiles {
  static constexpr int kGroupRows = kRowGroup;

  template <DType /*kType*/, int kRows, int kPanels>
  static void multiply(const FloatTile& tile) {
    alignas(64) float x[kRows][kTileInputs];
    for (int begin = 0; begin < tile.inputs; begin += kTileInputs) {
      const int inputs = least(kTileInputs, tile.inputs - begin);
      for (int r = 0; r < kRows; ++r)
        round_row(tile.x + static_cast<std::size_t>(r) * tile.x_stride + begin, inputs, x[r]);
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
          float* sum = tile.sums + (r * kPanels + p) * kPanel;
          _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even[r][p], odd[r][p])));
        }
    }
  }

 private:
  [[gnu::always_inline]] static void round_row(const float* from, int inputs, float* to) {
    const unsigned mask = inputs < kTileInputs ? (1u << inputs) - 1 : 0xffffffffu;
    const __m512i both = rounded(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from),
                                 _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), from + kPanel));
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
  // As many sums as fill the registers, two chains each.
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
        multiply_span(panel, least(kSpanPanels, panel_end - panel), group, least(kSpanGroups, groups - group));
  }

 private:
  void multiply_span(int panel, int panels, int group, int groups) {
    const int together = groups <= kFewGroups ? kFewPanels : kChunkPanels;
    for (int input = 0; input < weights_.inputs; input += kChunkInputs) {
      const int inputs = least(kChunkInputs, weights_.inputs - input);
      round_rows(group * kRowGroup, least(groups * kRowGroup, x_.rows - group * kRowGroup), input, inputs);
      for (int p = 0; p < panels; p += together)
        multiply_chunk(panel, p, least(p + together, panels), groups, input, inputs);
    }
    compiler_fence();
    for (int g = 0; g < groups; ++g)
      for (int p = 0; p < panels; ++p) copy_out(sums_[g][p], panel + p, (group + g) * kRowGroup);
  }

  // Rows that are wanting in the last group hold anything: a row of sums depends on its own row alone.
  void round_rows(int first, int rows, int input, int inputs) {
    for (int row = 0; row < rows; ++row) {
      const float* from = x_.f32 + static_cast<std::size_t>(first + row) * static_cast<std::size_t>(x_.inputs) + input;
      Tile* tiles = rows_[row / kRowGroup];
      const int place = row % kRowGroup * kTileInputs;
      int left = inputs;
      for (; left >= kTileInputs; left -= kTileInputs, from += kTileInputs, ++tiles)
        _mm512_store_si512(*tiles + place, rounded(_mm512_loadu_ps(from), _mm512_loadu_ps(from + kPanel)));
      if (left == 0) continue;
      const unsigned mask = (1u << left) - 1;
      _mm512_store_si512(*tiles + place,
                         rounded(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from),
                                 _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), from + kPanel)));
    }
  }
  // Panels [begin, end) from `panel` on, times all rows of the span.
  void multiply_chunk(int panel, int begin, int end, int groups, int input, int inputs) {
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
        const auto block = two_groups   ? two_panels ? multiply_block<true, true> : multiply_block<true, false>
                             : two_panels ? multiply_block<false, true>
                                        : multiply_block<false, false>;
        block(rows_[g], open_[p - begin], tiles, input == 0, sums_[g] + p);
      }
  }

  void copy_out(const Sums& sums, int panel, int row) {
    const int left = weights_.outputs - panel * kPanel;
    const auto mask = static_cast<__mmask16>(left < kPanel ? (1u << left) - 1 : 0xffffu);
    const int rows = least(kRowGroup, x_.rows - row);
    for (int r = 0; r < rows; ++r)
      _mm512_mask_storeu_ps(out_ + static_cast<std::size_t>(row + r) * out_stride_ + panel * kPanel, mask,
                            _mm512_load_ps(sums + r * kPanel));
  }

  const PackedMatrix& weights_;
  const Activations& x_;
  float* out_;
  std::size_t out_stride_;
  alignas(64) Tile rows_[kSpanGroups][kChunkTiles];
  alignas(64) Tile open_[kChunkPanels][kChunkTiles];
  alignas(64) Sums sums_[kSpanGroups][kSpanPanels];
};

}  // namespace

void bf16_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                 std::size_t out_stride) {
  if (x.rows < kLeastTileRows) return multiply_few(weights, x, panel_begin, panel_end, out, out_stride);
  const Tiles tiles(kTileRowBytes);
  Multiplication(weights, x, out, out_stride).multiply(panel_begin, panel_end);
}

}  // namespace kvasir::amx

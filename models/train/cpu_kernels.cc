// Forward and backward kernels of the training on CPUs with AMX, or with AVX-512 and its products of bf16
// (cpu_network.py calls them).
//
// Matrices are bf16, sums f32. Products run on tiles: an A tile holds 16 rows of 32 elements of the inner dimension, a
// B tile 16 pairs of them for each of 16 columns; both are 1 KiB. Attention computes scores transposed, [keys x
// queries], so that maxima and sums over keys add up vectors, and the probabilities become B tiles by interleaving two
// rows. Results do not depend on the number of threads.
#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

using bf16 = uint16_t;
using Index = int64_t;

namespace {

constexpr Index kTileElements = 512;  // bf16 of a tile: 16 rows of 32
constexpr Index kHead = 64;

// Tile rows must not straddle cache lines, and huge pages (2 MiB) save the misses of address translation.
template <typename T>
struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <typename U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t n) {
    constexpr size_t kHugePage = size_t{1} << 21;
    void* memory = std::aligned_alloc(kHugePage, (n * sizeof(T) + kHugePage - 1) / kHugePage * kHugePage);
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* p, size_t) { std::free(p); }
  bool operator==(const Aligned&) const { return true; }
};
template <typename T>
using Buffer = std::vector<T, Aligned<T>>;

// Denormals as zero (they cost hundreds of cycles) while it lives.
class DenormalsAreZero {
 public:
  DenormalsAreZero() : control_(_mm_getcsr()) { _mm_setcsr(control_ | 0x8040); }
  ~DenormalsAreZero() { _mm_setcsr(control_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  unsigned control_;
};

#ifdef __AMX_BF16__

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles of 16 rows of 64 bytes while it lives. Tiles 0 to 3 hold a block of 2 x 2 tiles of f32 sums.
class Tiles {
 public:
  Tiles() {
    alignas(64) TileConfig config;
    for (int i = 0; i < 8; ++i) config.bytes[i] = 64, config.rows[i] = 16;
    asm volatile("" ::: "memory");
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~Tiles() { _tile_release(); }

 private:
  DenormalsAreZero denormals_;
};

// GCC's tile loads do not say that they read memory: what was stored for them must not be moved behind them.
inline void finish_stores() {
  asm volatile("" ::: "memory");
}

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
inline void load_sums(const float* c, Index stride) {
  _tile_loadd(0, c, stride * 4);
  _tile_loadd(1, c + 16, stride * 4);
  _tile_loadd(2, c + 16 * stride, stride * 4);
  _tile_loadd(3, c + 16 * stride + 16, stride * 4);
}
inline void store_sums(float* c, Index stride) {
  _tile_stored(0, c, stride * 4);
  _tile_stored(1, c + 16, stride * 4);
  _tile_stored(2, c + 16 * stride, stride * 4);
  _tile_stored(3, c + 16 * stride + 16, stride * 4);
}
// += two A tiles, of rows `lda` apart, times two B tiles.
inline void add_product(const bf16* a0, const bf16* a1, Index lda, const bf16* b0, const bf16* b1) {
  _tile_loadd(4, a0, lda * 2);
  _tile_loadd(6, b0, 64);
  _tile_loadd(7, b1, 64);
  _tile_loadd(5, a1, lda * 2);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

#else

using Tiles = DenormalsAreZero;

alignas(64) thread_local float tile_sums[32][32];  // 2 x 2 tiles of a thread

inline void finish_stores() {}

inline void zero_sums() {
  std::memset(tile_sums, 0, sizeof tile_sums);
}
inline void load_sums(const float* c, Index stride) {
  for (int r = 0; r < 32; ++r) std::memcpy(tile_sums[r], c + r * stride, sizeof tile_sums[r]);
}
inline void store_sums(float* c, Index stride) {
  for (int r = 0; r < 32; ++r) std::memcpy(c + r * stride, tile_sums[r], sizeof tile_sums[r]);
}
// += two A tiles, of rows `lda` apart, times two B tiles. Eight rows at a time, whose sums fit the registers.
inline void add_product(const bf16* a0, const bf16* a1, Index lda, const bf16* b0, const bf16* b1) {
  constexpr int kRows = 8;
  for (int first = 0; first < 32; first += kRows) {
    const bf16* a = first < 16 ? a0 + first * lda : a1 + (first - 16) * lda;
    __m512 left[kRows], right[kRows];
    for (int r = 0; r < kRows; ++r) {
      left[r] = _mm512_load_ps(tile_sums[first + r]);
      right[r] = _mm512_load_ps(tile_sums[first + r] + 16);
    }
    for (int pair = 0; pair < 16; ++pair) {
      const auto columns0 = (__m512bh)_mm512_loadu_si512(b0 + 32 * pair);
      const auto columns1 = (__m512bh)_mm512_loadu_si512(b1 + 32 * pair);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int bits;
        std::memcpy(&bits, a + r * lda + 2 * pair, sizeof bits);
        const auto row = (__m512bh)_mm512_set1_epi32(bits);
        left[r] = _mm512_dpbf16_ps(left[r], row, columns0);
        right[r] = _mm512_dpbf16_ps(right[r], row, columns1);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(tile_sums[first + r], left[r]);
      _mm512_store_ps(tile_sums[first + r] + 16, right[r]);
    }
  }
}

#endif

inline __m512 load_bf16(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline void store_bf16(bf16* p, __m512 x) {
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x));
}
inline bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i + 0] = _mm512_unpacklo_epi64(t[4 * i + 0], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i + 0], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// 16 columns of rows 0 and 1 interleaved: the pairs that a B tile holds in a row.
inline __m512i interleave(const bf16* row0, const bf16* row1) {
  const __m512i lo = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)row0));
  const __m512i hi = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)row1));
  return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

// 32 rows (the inner dimension) of 16 columns -> a B tile.
inline void pack_pairs(const bf16* rows, Index stride, bf16* tile) {
  for (int p = 0; p < 16; ++p)
    _mm512_storeu_si512(tile + 32 * p, interleave(rows + 2 * p * stride, rows + (2 * p + 1) * stride));
}
// 32 rows (the inner dimension) of 16 columns -> an A tile: 16 rows, 32 columns of the inner dimension.
inline void pack_transposed(const bf16* rows, Index stride, bf16* tile) {
  __m512i r[16];
  for (int p = 0; p < 16; ++p) r[p] = interleave(rows + 2 * p * stride, rows + (2 * p + 1) * stride);
  transpose16(r);
  for (int p = 0; p < 16; ++p) _mm512_storeu_si512(tile + 32 * p, r[p]);
}
// 16 rows (columns of B) of 32 elements (the inner dimension) -> a B tile.
inline void pack_rows(const bf16* rows, Index stride, bf16* tile) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(rows + i * stride);
  transpose16(r);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + 32 * i, r[i]);
}

enum Output { kBf16, kF32, kF32PlusResidual };

inline void write_block(const float* block, Output mode, void* out, const float* residual, Index ldc, Index row,
                        Index column) {
  for (int i = 0; i < 32; ++i)
    for (int half = 0; half < 2; ++half) {
      const __m512 x = _mm512_load_ps(block + 32 * i + 16 * half);
      const Index at = (row + i) * ldc + column + 16 * half;
      if (mode == kBf16)
        store_bf16((bf16*)out + at, x);
      else if (mode == kF32)
        _mm512_storeu_ps((float*)out + at, x);
      else
        _mm512_storeu_ps((float*)out + at, _mm512_add_ps(x, _mm512_loadu_ps(residual + at)));
    }
}

constexpr Index kPanel = 64;  // rows of A that are packed and multiplied together

// out [rows x n] = a [rows x k] B, rows a multiple of 32 and at most kPanel.
inline void multiply_rows(const bf16* a, Index lda, const bf16* packed, Index rows, Index n, Index k, void* out,
                          Output mode, const float* residual, bf16* panel) {
  alignas(64) float block[32 * 32];
  const Index steps = k / 32;
  for (Index m = 0; m < rows; m += 16)
    for (int r = 0; r < 16; ++r)
      for (Index s = 0; s < steps; ++s)
        _mm512_store_si512(panel + (m / 16 * steps + s) * kTileElements + 32 * r,
                           _mm512_loadu_si512(a + (m + r) * lda + 32 * s));
  finish_stores();
  for (Index nb = 0; nb < n / 16; nb += 2)
    for (Index m = 0; m < rows; m += 32) {
      zero_sums();
      const bf16 *a0 = panel + m / 16 * steps * kTileElements, *a1 = a0 + steps * kTileElements;
      const bf16 *b0 = packed + nb * steps * kTileElements, *b1 = b0 + steps * kTileElements;
      for (Index s = 0; s < steps; ++s) {
        for (int line = 0; line < kTileElements; line += 32) {
          _mm_prefetch((const char*)(b0 + (s + 2) * kTileElements + line), _MM_HINT_T0);
          _mm_prefetch((const char*)(b1 + (s + 2) * kTileElements + line), _MM_HINT_T0);
        }
        add_product(a0 + s * kTileElements, a1 + s * kTileElements, 32, b0 + s * kTileElements, b1 + s * kTileElements);
      }
      store_sums(block, 32);
      write_block(block, mode, out, residual, n, m, nb * 16);
    }
}

void linear(const bf16* a, Index lda, const bf16* packed, Index m, Index n, Index k, void* out, Output mode,
            const float* residual) {
#pragma omp parallel
  {
    const Tiles tiles;
    static thread_local Buffer<bf16> panel;
    panel.resize(kPanel * k);
#pragma omp for schedule(static)
    for (Index m0 = 0; m0 < m; m0 += kPanel)
      multiply_rows(a + m0 * lda, lda, packed, std::min(kPanel, m - m0), n, k,
                    (char*)out + m0 * n * (mode == kBf16 ? 2 : 4), mode, residual ? residual + m0 * n : nullptr,
                    panel.data());
  }
}

// exp2 for x <= 0, by the first terms of its series on [-1/2, 1/2]: 3e-6 relative, of values that are rounded to bf16.
inline __m512 exp2_ps(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.f));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.33335581e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, n);
}

// Rotates 32 interleaved pairs; `sign` -1 undoes it.
inline void rotate_head(const float* in, float* out, const float* cosine, const float* sine, float factor, float sign) {
  const __m512i dup = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  for (int i = 0; i < 4; ++i) {
    const __m512 x = _mm512_loadu_ps(in + 16 * i);
    const __m512 c = _mm512_mul_ps(_mm512_permutexvar_ps(dup, _mm512_castps256_ps512(_mm256_loadu_ps(cosine + 8 * i))),
                                   _mm512_set1_ps(factor));
    const __m512 s = _mm512_mul_ps(_mm512_permutexvar_ps(dup, _mm512_castps256_ps512(_mm256_loadu_ps(sine + 8 * i))),
                                   _mm512_set1_ps(factor * sign));
    const __m512 swapped = _mm512_permute_ps(x, 0xb1);
    _mm512_storeu_ps(out + 16 * i, _mm512_fmaddsub_ps(x, c, _mm512_mul_ps(swapped, s)));
  }
}

struct Shape {
  Index length, heads, kv_heads;
  Index width() const { return (heads + 2 * kv_heads) * kHead; }
};

void rotated_head(const bf16* x, Index stride, Index length, const float* cosine, const float* sine, float factor,
                  bf16* out) {
  alignas(64) float in[64], rotated[64];
  for (Index t = 0; t < length; ++t) {
    for (int i = 0; i < 4; ++i) _mm512_store_ps(in + 16 * i, load_bf16(x + t * stride + 16 * i));
    rotate_head(in, rotated, cosine + 32 * t, sine + 32 * t, factor, 1.f);
    for (int i = 0; i < 4; ++i) store_bf16(out + 64 * t + 16 * i, _mm512_load_ps(rotated + 16 * i));
  }
}

constexpr float kLog2e = 1.44269504f;

inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  const __m512 e = exp2_ps(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-kLog2e)));
  const __m512 s = _mm512_div_ps(one, _mm512_add_ps(one, e));
  return _mm512_mask_sub_ps(s, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), one, s);
}

// Two rows of 16 values as the pairs that a row of a B tile holds.
inline __m512i pairs_of(__m512 row0, __m512 row1) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(row1, row0));
}
// The lanes of 16 columns from `first` on that are at or behind `row`.
inline __mmask16 causal(Index row, Index first) {
  return row <= first ? 0xffff : row - first >= 16 ? 0 : __mmask16(0xffff << (row - first));
}

// C[64 x 64, f32] (+)= A[64 x 32 steps] B; A tile (m, s) at a + m*am + s*as of row stride `lda`, B tile (s, n) at b +
// s*bs + n*bn.
template <bool kZero>
inline void multiply64(float* c, const bf16* a, Index am, Index as, Index lda, const bf16* b, Index bs, Index bn,
                       Index steps) {
  finish_stores();
  for (int m = 0; m < 4; m += 2)
    for (int n = 0; n < 4; n += 2) {
      float* c0 = c + 16 * m * 64 + 16 * n;
      if (kZero) {
        zero_sums();
      } else {
        load_sums(c0, 64);
      }
      for (Index s = 0; s < steps; ++s) {
        add_product(a + m * am + s * as, a + (m + 1) * am + s * as, lda, b + s * bs + n * bn,
                    b + s * bs + (n + 1) * bn);
      }
      store_sums(c0, 64);
    }
}

struct ForwardScratch {
  Buffer<bf16> q, k, queries, values;
};

// Scores are computed transposed, [keys x queries], so that maxima and sums over keys are sums of vectors.
void attend_forward(const bf16* qkv, const Shape& shape, Index g, const float* cosine, const float* sine, bf16* out,
                    float* lse, ForwardScratch& s) {
  const Index T = shape.length, W = shape.width(), group = shape.heads / shape.kv_heads;
  s.q.resize(T * 64), s.k.resize(T * 64), s.queries.resize(T * 64), s.values.resize(T * 64);
  rotated_head(qkv + (shape.heads + g) * 64, W, T, cosine, sine, 1.f, s.k.data());
  const bf16* v = qkv + (shape.heads + shape.kv_heads + g) * 64;
  for (Index kb = 0; kb < T / 32; ++kb)
    for (Index db = 0; db < 4; ++db)
      pack_transposed(v + kb * 32 * W + db * 16, W, &s.values[(kb * 4 + db) * kTileElements]);
  constexpr Index kKeys = 128;
  alignas(64) float scores[kKeys * 64], o[64 * 64];
  alignas(64) bf16 p[kKeys * 64];
  for (Index h = g * group; h < (g + 1) * group; ++h) {
    rotated_head(qkv + h * 64, W, T, cosine, sine, 0.125f * kLog2e, s.q.data());
    for (Index nb = 0; nb < T / 16; ++nb)
      for (Index kb = 0; kb < 2; ++kb)
        pack_rows(&s.q[nb * 16 * 64 + kb * 32], 64, &s.queries[(nb * 2 + kb) * kTileElements]);
    for (Index q0 = 0; q0 < T; q0 += 64) {
      std::memset(o, 0, sizeof o);
      __m512 top[4], sum[4];
      for (int c = 0; c < 4; ++c) top[c] = _mm512_set1_ps(-1e30f), sum[c] = _mm512_setzero_ps();
      for (Index k0 = 0; k0 < q0 + 64; k0 += kKeys) {
        const Index nk = std::min(kKeys, q0 + 64 - k0);
        for (Index k = 0; k < nk; k += 64)
          multiply64<true>(scores + k * 64, &s.k[(k0 + k) * 64], 16 * 64, 32, 64,
                           &s.queries[q0 / 16 * 2 * kTileElements], kTileElements, 2 * kTileElements, 2);
        if (k0 + nk > q0)
          for (Index r = std::max<Index>(0, q0 - k0); r < nk; ++r)
            for (int c = 0; c < 4; ++c) {
              float* at = scores + 64 * r + 16 * c;
              _mm512_store_ps(
                  at, _mm512_mask_mov_ps(_mm512_set1_ps(-1e30f), causal(k0 + r, q0 + 16 * c), _mm512_load_ps(at)));
            }
        __m512 highest[4] = {top[0], top[1], top[2], top[3]};
        for (Index r = 0; r < nk; ++r)
          for (int c = 0; c < 4; ++c) highest[c] = _mm512_max_ps(highest[c], _mm512_load_ps(scores + 64 * r + 16 * c));
        bool higher = false;
        for (int c = 0; c < 4; ++c) higher |= _mm512_cmp_ps_mask(highest[c], top[c], _CMP_GT_OQ) != 0;
        if (higher) {
          __m512 scale[4];
          for (int c = 0; c < 4; ++c)
            scale[c] = exp2_ps(_mm512_sub_ps(top[c], highest[c])), sum[c] = _mm512_mul_ps(sum[c], scale[c]),
            top[c] = highest[c];
          if (k0 > 0)
            for (int d = 0; d < 64; ++d)
              for (int c = 0; c < 4; ++c)
                _mm512_store_ps(o + 64 * d + 16 * c, _mm512_mul_ps(_mm512_load_ps(o + 64 * d + 16 * c), scale[c]));
        }
        for (Index r = 0; r < nk; r += 2)
          for (int c = 0; c < 4; ++c) {
            const __m512 e0 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(scores + 64 * r + 16 * c), top[c]));
            const __m512 e1 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(scores + 64 * r + 64 + 16 * c), top[c]));
            sum[c] = _mm512_add_ps(sum[c], _mm512_add_ps(e0, e1));
            _mm512_store_si512(p + (r / 32 * 4 + c) * kTileElements + r % 32 * 16, pairs_of(e0, e1));
          }
        multiply64<false>(o, &s.values[k0 / 32 * 4 * kTileElements], kTileElements, 4 * kTileElements, 32, p,
                          4 * kTileElements, kTileElements, nk / 32);
      }
      for (int c = 0; c < 4; ++c) {
        const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.f), sum[c]);
        for (int d = 0; d < 64; d += 16) {
          __m512i block[16];
          for (int i = 0; i < 16; ++i)
            block[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(o + 64 * (d + i) + 16 * c), inverse));
          transpose16(block);
          for (int i = 0; i < 16; ++i)
            store_bf16(out + (q0 + 16 * c + i) * shape.heads * 64 + h * 64 + d, _mm512_castsi512_ps(block[i]));
        }
        alignas(64) float tops[16], sums[16];
        _mm512_store_ps(tops, top[c]), _mm512_store_ps(sums, sum[c]);
        for (int i = 0; i < 16; ++i) lse[h * T + q0 + 16 * c + i] = tops[i] + std::log2(sums[i]);
      }
    }
  }
}

struct BackwardScratch {
  Buffer<bf16> k, k_transposed, q[4], q_rows[4], q_pairs[4], go_rows[4], go_pairs[4];
  Buffer<float> dq[4], delta[4];
};

void attend_backward(const bf16* qkv, const bf16* o, const bf16* go, const float* lse, const Shape& shape, Index g,
                     const float* cosine, const float* sine, bf16* dqkv, BackwardScratch& s) {
  const Index T = shape.length, W = shape.width(), OW = shape.heads * 64, group = shape.heads / shape.kv_heads;
  s.k.resize(T * 64), s.k_transposed.resize(T * 64);
  rotated_head(qkv + (shape.heads + g) * 64, W, T, cosine, sine, 1.f, s.k.data());
  for (Index kb = 0; kb < T / 32; ++kb)  // A tiles of K^T
    for (int db = 0; db < 4; ++db)
      pack_transposed(&s.k[kb * 32 * 64 + 16 * db], 64, &s.k_transposed[(kb * 4 + db) * kTileElements]);
  for (Index j = 0; j < group; ++j) {
    const Index h = g * group + j;
    s.q[j].resize(T * 64), s.q_rows[j].resize(T * 64), s.q_pairs[j].resize(T * 64), s.go_rows[j].resize(T * 64),
        s.go_pairs[j].resize(T * 64);
    s.dq[j].assign(T * 64, 0.f), s.delta[j].resize(T);
    rotated_head(qkv + h * 64, W, T, cosine, sine, 0.125f * kLog2e, s.q[j].data());
    for (Index nb = 0; nb < T / 16; ++nb)
      for (int kb = 0; kb < 2; ++kb) {
        pack_rows(&s.q[j][nb * 16 * 64 + kb * 32], 64, &s.q_rows[j][(nb * 2 + kb) * kTileElements]);
        pack_rows(go + nb * 16 * OW + h * 64 + kb * 32, OW, &s.go_rows[j][(nb * 2 + kb) * kTileElements]);
      }
    for (Index kb = 0; kb < T / 32; ++kb)
      for (int nb = 0; nb < 4; ++nb) {
        pack_pairs(&s.q[j][kb * 32 * 64 + nb * 16], 64, &s.q_pairs[j][(kb * 4 + nb) * kTileElements]);
        pack_pairs(go + kb * 32 * OW + h * 64 + nb * 16, OW, &s.go_pairs[j][(kb * 4 + nb) * kTileElements]);
      }
    for (Index t = 0; t < T; ++t) {
      __m512 sum = _mm512_setzero_ps();
      for (int d = 0; d < 64; d += 16)
        sum = _mm512_fmadd_ps(load_bf16(o + t * OW + h * 64 + d), load_bf16(go + t * OW + h * 64 + d), sum);
      s.delta[j][t] = _mm512_reduce_add_ps(sum);
    }
  }
  const bf16* v = qkv + (shape.heads + shape.kv_heads + g) * 64;
  alignas(64) float st[64 * 64], dp[64 * 64], dk[64 * 64], dv[64 * 64];
  alignas(64) bf16 p[64 * 64], ds[64 * 64], ds_pairs[64 * 64], values[64 * 64];
  for (Index k0 = 0; k0 < T; k0 += 64) {
    std::memset(dk, 0, sizeof dk), std::memset(dv, 0, sizeof dv);
    for (int r = 0; r < 64; ++r) std::memcpy(values + 64 * r, v + (k0 + r) * W, 128);
    for (Index j = 0; j < group; ++j) {
      const Index h = g * group + j;
      for (Index q0 = k0; q0 < T; q0 += 64) {
        const Index rows = q0 / 16 * 2 * kTileElements, pairs = q0 / 32 * 4 * kTileElements;
        multiply64<true>(st, &s.k[k0 * 64], 16 * 64, 32, 64, &s.q_rows[j][rows], kTileElements, 2 * kTileElements, 2);
        multiply64<true>(dp, values, 16 * 64, 32, 64, &s.go_rows[j][rows], kTileElements, 2 * kTileElements, 2);
        for (int c = 0; c < 64; c += 32) {
          const __m512 l0 = _mm512_loadu_ps(lse + h * T + q0 + c), l1 = _mm512_loadu_ps(lse + h * T + q0 + c + 16);
          const __m512 delta0 = _mm512_loadu_ps(&s.delta[j][q0 + c]),
                       delta1 = _mm512_loadu_ps(&s.delta[j][q0 + c + 16]);
          for (int r = 0; r < 64; r += 2) {
            __m512 d[2][2];
            for (int i = 0; i < 2; ++i) {
              const float *x = st + 64 * (r + i) + c, *y = dp + 64 * (r + i) + c;
              __m512 e0 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(x), l0)),
                     e1 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(x + 16), l1));
              if (q0 == k0)
                e0 = _mm512_maskz_mov_ps(causal(r + i, c), e0), e1 = _mm512_maskz_mov_ps(causal(r + i, c + 16), e1);
              d[i][0] = _mm512_mul_ps(e0, _mm512_sub_ps(_mm512_load_ps(y), delta0));
              d[i][1] = _mm512_mul_ps(e1, _mm512_sub_ps(_mm512_load_ps(y + 16), delta1));
              _mm512_store_si512(p + 64 * (r + i) + c, (__m512i)_mm512_cvtne2ps_pbh(e1, e0));
              _mm512_store_si512(ds + 64 * (r + i) + c, (__m512i)_mm512_cvtne2ps_pbh(d[i][1], d[i][0]));
            }
            for (int i = 0; i < 2; ++i)
              _mm512_store_si512(ds_pairs + (r / 32 * 4 + c / 16 + i) * kTileElements + r % 32 * 16,
                                 pairs_of(d[0][i], d[1][i]));
          }
        }
        multiply64<false>(dv, p, 16 * 64, 32, 64, &s.go_pairs[j][pairs], 4 * kTileElements, kTileElements, 2);
        multiply64<false>(dk, ds, 16 * 64, 32, 64, &s.q_pairs[j][pairs], 4 * kTileElements, kTileElements, 2);
        multiply64<false>(&s.dq[j][q0 * 64], &s.k_transposed[k0 / 32 * 4 * kTileElements], kTileElements,
                          4 * kTileElements, 32, ds_pairs, 4 * kTileElements, kTileElements, 2);
      }
    }
    alignas(64) float rotated[64];
    for (int r = 0; r < 64; ++r) {
      rotate_head(dk + 64 * r, rotated, cosine + 32 * (k0 + r), sine + 32 * (k0 + r), 1.f / kLog2e, -1.f);
      for (int d = 0; d < 64; d += 16) {
        store_bf16(dqkv + (k0 + r) * W + (shape.heads + g) * 64 + d, _mm512_load_ps(rotated + d));
        store_bf16(dqkv + (k0 + r) * W + (shape.heads + shape.kv_heads + g) * 64 + d, _mm512_load_ps(dv + 64 * r + d));
      }
    }
  }
  alignas(64) float rows[16 * 64], rotated[64];
  for (Index j = 0; j < group; ++j)
    for (Index t0 = 0; t0 < T; t0 += 16) {  // dq is stored block after block as 64 (d) x 64 (queries)
      const float* block = &s.dq[j][t0 / 64 * 64 * 64 + t0 % 64];
      for (int d = 0; d < 64; d += 16) {
        __m512i part[16];
        for (int i = 0; i < 16; ++i) part[i] = _mm512_loadu_si512(block + 64 * (d + i));
        transpose16(part);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(rows + 64 * i + d, part[i]);
      }
      for (Index t = t0; t < t0 + 16; ++t) {
        rotate_head(rows + 64 * (t - t0), rotated, cosine + 32 * t, sine + 32 * t, 0.125f, -1.f);
        for (int d = 0; d < 64; d += 16)
          store_bf16(dqkv + t * W + (g * group + j) * 64 + d, _mm512_load_ps(rotated + d));
      }
    }
}

}  // namespace

extern "C" {

int cpu_init() {
#ifdef __AMX_BF16__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (int)syscall(SYS_arch_prctl, kRequestPermission, kTileData);
#else
  return 0;
#endif
}

// W [n x k] f32 -> tiles for X W^T (inner dimension k).
void cpu_pack_nt(const float* w, Index n, Index k, bf16* packed) {
#pragma omp parallel for schedule(static)
  for (Index nb = 0; nb < n / 16; ++nb) {
    alignas(64) bf16 rows[16 * 32];
    for (Index kb = 0; kb < k / 32; ++kb) {
      for (int r = 0; r < 16; ++r)
        for (int half = 0; half < 2; ++half)
          store_bf16(rows + 32 * r + 16 * half, _mm512_loadu_ps(w + (nb * 16 + r) * k + kb * 32 + 16 * half));
      pack_rows(rows, 32, packed + (nb * (k / 32) + kb) * kTileElements);
    }
  }
}
// W [n x k] f32 -> tiles for dY W (inner dimension n).
void cpu_pack_nn(const float* w, Index n, Index k, bf16* packed) {
#pragma omp parallel for schedule(static)
  for (Index cb = 0; cb < k / 16; ++cb) {
    alignas(64) bf16 rows[32 * 16];
    for (Index kb = 0; kb < n / 32; ++kb) {
      for (int r = 0; r < 32; ++r) store_bf16(rows + 16 * r, _mm512_loadu_ps(w + (kb * 32 + r) * k + cb * 16));
      pack_pairs(rows, 16, packed + (cb * (n / 32) + kb) * kTileElements);
    }
  }
}

// out [m x n] = a [m x k] B, bf16.
void cpu_linear(const bf16* a, Index lda, const bf16* packed, Index m, Index n, Index k, bf16* out) {
  linear(a, lda, packed, m, n, k, out, kBf16, nullptr);
}
// out = residual + a B, both f32.
void cpu_linear_add(const bf16* a, Index lda, const bf16* packed, Index m, Index n, Index k, float* out,
                    const float* residual) {
  linear(a, lda, packed, m, n, k, out, kF32PlusResidual, residual);
}

// dw [n x k] += dy [t x n]^T x [t x k].
void cpu_grad_weight(const bf16* dy, Index ldy, const bf16* x, Index ldx, Index t, Index n, Index k, float* dw) {
  const Index chunk = std::min<Index>(t, 1024);
  static Buffer<bf16> a, b;
  static Buffer<float> sums;
  a.resize(n * chunk), b.resize(k * chunk), sums.resize(n * k);
#pragma omp parallel
  {
    const Tiles tiles;
    for (Index t0 = 0; t0 < t; t0 += chunk) {
      const Index steps = std::min(chunk, t - t0) / 32;
#pragma omp for schedule(static) nowait
      for (Index s = 0; s < steps; ++s)
        for (Index nb = 0; nb < n / 16; ++nb)
          pack_transposed(dy + (t0 + 32 * s) * ldy + 16 * nb, ldy, &a[(nb * steps + s) * kTileElements]);
#pragma omp for schedule(static)
      for (Index s = 0; s < steps; ++s)
        for (Index nb = 0; nb < k / 16; ++nb)
          pack_pairs(x + (t0 + 32 * s) * ldx + 16 * nb, ldx, &b[(nb * steps + s) * kTileElements]);
      finish_stores();
#pragma omp for schedule(static)
      for (Index m = 0; m < n; m += 32)
        for (Index c = 0; c < k; c += 32) {
          float* sum = &sums[m * k + c * 32];
          if (t0 == 0) {
            zero_sums();
          } else {
            load_sums(sum, 32);
          }
          const bf16 *a0 = &a[m / 16 * steps * kTileElements], *a1 = a0 + steps * kTileElements;
          const bf16 *b0 = b.data() + c / 16 * steps * kTileElements, *b1 = b0 + steps * kTileElements;
          for (Index s = 0; s < steps; ++s) {
            add_product(a0 + s * kTileElements, a1 + s * kTileElements, 32, b0 + s * kTileElements,
                        b1 + s * kTileElements);
          }
          store_sums(sum, 32);
          if (t0 + chunk >= t)
            for (int i = 0; i < 32; ++i)
              for (int half = 0; half < 32; half += 16) {
                float* to = dw + (m + i) * k + c + half;
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_load_ps(sum + 32 * i + half)));
              }
        }
    }
  }
}

void cpu_norm(const float* x, const float* w, Index rows, Index d, bf16* y, float* inverse) {
#pragma omp parallel for schedule(static)
  for (Index r = 0; r < rows; ++r) {
    const float* row = x + r * d;
    __m512 sum = _mm512_setzero_ps();
    for (Index i = 0; i < d; i += 16) {
      const __m512 v = _mm512_loadu_ps(row + i);
      sum = _mm512_fmadd_ps(v, v, sum);
    }
    inverse[r] = 1.f / std::sqrt(_mm512_reduce_add_ps(sum) / float(d) + 1e-5f);
    const __m512 f = _mm512_set1_ps(inverse[r]);
    for (Index i = 0; i < d; i += 16)
      store_bf16(y + r * d + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), f), _mm512_loadu_ps(w + i)));
  }
}

// dx += gradient through the norm; gx = bf16(dx); dw += gradient of its weights.
void cpu_norm_backward(const float* x, const float* w, const float* inverse, const bf16* dy, Index rows, Index d,
                       float* dx, bf16* gx, float* dw) {
  constexpr Index kParts = 64;  // of the rows, as many for any number of threads
  std::vector<float> partial(kParts * d, 0.f);
#pragma omp parallel for schedule(static)
  for (Index part = 0; part < kParts; ++part) {
    float* pw = &partial[part * d];
    for (Index r = part * rows / kParts; r < (part + 1) * rows / kParts; ++r) {
      const float* row = x + r * d;
      __m512 dot = _mm512_setzero_ps();
      const __m512 f = _mm512_set1_ps(inverse[r]);
      for (Index i = 0; i < d; i += 16) {
        const __m512 v = _mm512_loadu_ps(row + i), g = load_bf16(dy + r * d + i);
        dot = _mm512_fmadd_ps(_mm512_mul_ps(g, _mm512_loadu_ps(w + i)), v, dot);
        _mm512_storeu_ps(pw + i, _mm512_fmadd_ps(_mm512_mul_ps(v, f), g, _mm512_loadu_ps(pw + i)));
      }
      const float total = _mm512_reduce_add_ps(dot);
      const __m512 back = _mm512_set1_ps(total * inverse[r] * inverse[r] * inverse[r] / float(d));
      for (Index i = 0; i < d; i += 16) {
        const __m512 v = _mm512_loadu_ps(row + i), g = _mm512_mul_ps(load_bf16(dy + r * d + i), _mm512_loadu_ps(w + i));
        const __m512 out =
            _mm512_add_ps(_mm512_loadu_ps(dx + r * d + i), _mm512_fnmadd_ps(back, v, _mm512_mul_ps(g, f)));
        _mm512_storeu_ps(dx + r * d + i, out);
        store_bf16(gx + r * d + i, out);
      }
    }
  }
  for (Index part = 0; part < kParts; ++part)
    for (Index i = 0; i < d; ++i) dw[i] += partial[part * d + i];
}

// gu [rows x 2f] (gate, up) -> a [rows x f].
void cpu_swiglu(const bf16* gu, Index rows, Index f, bf16* a) {
#pragma omp parallel for schedule(static)
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < f; i += 16) {
      const __m512 g = load_bf16(gu + r * 2 * f + i), u = load_bf16(gu + r * 2 * f + f + i);
      store_bf16(a + r * f + i, _mm512_mul_ps(_mm512_mul_ps(g, sigmoid(g)), u));
    }
}
// Writes the gradients of gate and up over gu, and the activation again into a.
void cpu_swiglu_backward(bf16* gu, const bf16* da, Index rows, Index f, bf16* a) {
  const __m512 one = _mm512_set1_ps(1.f);
#pragma omp parallel for schedule(static)
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < f; i += 16) {
      const __m512 g = load_bf16(gu + r * 2 * f + i), u = load_bf16(gu + r * 2 * f + f + i),
                   d = load_bf16(da + r * f + i);
      const __m512 s = sigmoid(g), gs = _mm512_mul_ps(g, s);
      store_bf16(a + r * f + i, _mm512_mul_ps(gs, u));
      store_bf16(gu + r * 2 * f + f + i, _mm512_mul_ps(d, gs));
      store_bf16(gu + r * 2 * f + i, _mm512_mul_ps(_mm512_mul_ps(d, u), _mm512_fmadd_ps(gs, _mm512_sub_ps(one, s), s)));
    }
}

void cpu_attention(const bf16* qkv, Index batch, Index length, Index heads, Index kv_heads, const float* cosine,
                   const float* sine, bf16* out, float* lse) {
  const Shape shape{length, heads, kv_heads};
#pragma omp parallel
  {
    const Tiles tiles;
    static thread_local ForwardScratch scratch;
#pragma omp for schedule(dynamic)
    for (Index i = 0; i < batch * kv_heads; ++i) {
      const Index b = i / kv_heads;
      attend_forward(qkv + b * length * shape.width(), shape, i % kv_heads, cosine, sine, out + b * length * heads * 64,
                     lse + b * heads * length, scratch);
    }
  }
}
void cpu_attention_backward(const bf16* qkv, const bf16* o, const bf16* go, const float* lse, Index batch, Index length,
                            Index heads, Index kv_heads, const float* cosine, const float* sine, bf16* dqkv) {
  const Shape shape{length, heads, kv_heads};
#pragma omp parallel
  {
    const Tiles tiles;
    static thread_local BackwardScratch scratch;
#pragma omp for schedule(dynamic)
    for (Index i = 0; i < batch * kv_heads; ++i) {
      const Index b = i / kv_heads, at = b * length;
      attend_backward(qkv + at * shape.width(), o + at * heads * 64, go + at * heads * 64, lse + b * heads * length,
                      shape, i % kv_heads, cosine, sine, dqkv + at * shape.width(), scratch);
    }
  }
}

// h [rows x d] bf16, tied embedding as tiles (nt: d -> v, nn: v -> d); weight[r] multiplies row r's loss.
// losses[r] = -log p(target). With dh: dh = gradient (bf16), de [v x d] += gradient.
void cpu_head(const bf16* h, const bf16* nt, const bf16* nn, const int64_t* targets, const float* weights, Index rows,
              Index d, Index v, float* losses, bf16* dh, float* de) {
  const Index chunk = 512;
  static Buffer<float> logits;
  static Buffer<bf16> dl;
  logits.resize(chunk * v), dl.resize(chunk * v);
  for (Index r0 = 0; r0 < rows; r0 += chunk) {
    const Index n = std::min(chunk, rows - r0);
    linear(h + r0 * d, d, nt, n, v, d, logits.data(), kF32, nullptr);
#pragma omp parallel for schedule(static)
    for (Index r = 0; r < n; ++r) {
      float* row = &logits[r * v];
      __m512 m = _mm512_set1_ps(-1e30f);
      for (Index i = 0; i < v; i += 16) m = _mm512_max_ps(m, _mm512_loadu_ps(row + i));
      const float top = _mm512_reduce_max_ps(m);
      const float target = row[targets[r0 + r]];
      __m512 sum = _mm512_setzero_ps();
      for (Index i = 0; i < v; i += 16) {
        const __m512 e = exp2_ps(
            _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + i), _mm512_set1_ps(top)), _mm512_set1_ps(kLog2e)));
        sum = _mm512_add_ps(sum, e);
        _mm512_storeu_ps(row + i, e);
      }
      const float total = _mm512_reduce_add_ps(sum);
      losses[r0 + r] = top + std::log(total) - target;
      if (dh) {
        const float w = weights[r0 + r];
        const __m512 f = _mm512_set1_ps(w / total);
        for (Index i = 0; i < v; i += 16) store_bf16(&dl[r * v + i], _mm512_mul_ps(_mm512_loadu_ps(row + i), f));
        dl[r * v + targets[r0 + r]] = to_bf16(row[targets[r0 + r]] * w / total - w);
      }
    }
    if (dh) {
      cpu_linear(dl.data(), v, nn, n, d, v, dh + r0 * d);
      cpu_grad_weight(dl.data(), v, h + r0 * d, d, n, v, d, de);
    }
  }
}

}  // extern "C"

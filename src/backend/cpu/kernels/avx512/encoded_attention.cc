#include "backend/cpu/kernels/encoded_attention.h"

#include "backend/cpu/kernels/avx512/attention_parts.h"
#include "backend/cpu/kernels/avx512/open_codes.h"

namespace kvasir::avx512 {
namespace {

struct Vectors {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int kVectors = 2;
  static constexpr int kSums = 16;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats load(std::uint16_t mask, const float* p) { return _mm512_maskz_loadu_ps(mask, p); }
  static Floats load_halves(const std::byte* p) { return load16<KvType::kF16>(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static float sum(Floats x) { return sum16(x); }

  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints magnitude(Floats x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
  static Ints most_bits(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
  static std::uint32_t most(Ints x) { return _mm512_reduce_max_epu32(x); }
  static Ints load_codes(const std::int16_t* p) { return _mm512_load_si512(p); }
  static Ints dot(Ints sum, std::int32_t pair, Ints codes) {
    return _mm512_dpwssd_epi32(sum, codes, _mm512_set1_epi32(pair));
  }
  static void store_integers(std::int16_t* p, Floats x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
  }

  static void sum_four(const Floats* x, float* out) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    const __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)));
  }
  static void most_four(const Ints* x, std::uint32_t* out) {
    const __m512i ab = _mm512_max_epu32(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    const __m512i cd = _mm512_max_epu32(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    const __m512i all = _mm512_max_epu32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
    const __m512i two = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    const __m512i one = _mm512_max_epu32(two, _mm512_shuffle_epi32(two, _MM_PERM_CDAB));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, one)));
  }

  static void open_codes(const EncodedSide& side, std::int16_t* words) { avx512::open_codes(side, words); }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_floats(const float* keys, int dim, const float* const (&from)[kQueries],
                                                  float* out) {
    alignas(64) float q[kMaxHeadDim * kQueries];
    for (int i = 0; i < kQueries; ++i)
      for (int d = 0; d < dim; ++d) q[d * kQueries + i] = from[i][d];
    __m512 score[kQueries][kSlotVectors];
    page_scores<KvType::kF32, kSlotVectors, kQueries>(reinterpret_cast<const std::byte*>(keys), dim, q, score);
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kSlotVectors; ++v) _mm512_store_ps(out + i * 64 + v * 16, score[i][v]);
  }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void weigh(const AttentionPartial& partial, const AttentionState& state, int first,
                                           const QueryBlock<kQueries>& block, int e, const SlotMask (&live)[kQueries],
                                           const float* scores, float* weight, float* keep) {
    __m512 score[kQueries][kSlotVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kSlotVectors; ++v) score[i][v] = _mm512_load_ps(scores + i * 64 + v * 16);
    avx512::weigh<kSlotVectors, kQueries>(partial, state, first, block, e, live, score, weight, keep);
  }

  template <int kQueries>
  [[gnu::always_inline]] static void add_floats(const float* values, int dim, const SlotMask (&live)[kQueries],
                                                const float* weight, const float* keep, float* const* weighted) {
    add_all_values<KvType::kF32, kQueries>(reinterpret_cast<const std::byte*>(values), dim, live, weight, keep,
                                           weighted);
  }

  template <int kSlotVectors, class Block>
  [[gnu::always_inline]] static void query_blocks(int queries, const Block& block) {
    avx512::query_blocks<kSlotVectors>(
        queries, [&]<int kVectors, int kQueries>(int first) { block.template operator()<kQueries>(first); });
  }
};

}  // namespace

void attend_encoded(const AttentionPartial& partial, const AttentionState& state) {
  EncodedAttention<Vectors>::attend(partial, state);
}

}  // namespace kvasir::avx512

#include "backend/cpu/kernels/encoded_attention.h"

#include "backend/cpu/kernels/avx512/attention_parts.h"
#include "backend/cpu/kernels/avx512/open_codes.h"
#include "backend/cpu/kernels/integer_units.h"

namespace kvasir::avx512 {
namespace {

struct Vectors {
  using Floats = __m512;
  using Ints = __m512i;
  using Mask = __mmask16;
  static constexpr int kVectors = 2;
  static constexpr int kSums = 16;
  static constexpr int kQueries = 8;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats load_halves(const std::byte* p) { return load16<KvType::kF16>(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  // Zero, or c, in the lanes that are not of the mask.
  static Mask mask(std::uint16_t bits) { return bits; }
  static Floats mul(Mask mask, Floats a, Floats b) { return _mm512_maskz_mul_ps(mask, a, b); }
  static Floats fma(Mask mask, Floats a, Floats b, Floats c) { return _mm512_mask3_fmadd_ps(a, b, c, mask); }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static float sum(Floats x) { return sum16(x); }

  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Ints magnitude(Floats x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
  static Ints most_bits(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
  static Ints load_codes(const std::int16_t* p) { return _mm512_load_si512(p); }
  static Ints load_bytes(const std::byte* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Ints load_units(const std::byte* p) { return _mm512_loadu_si512(p); }
  template <int kBits, int kPart>
  static Ints plane_part(Ints units) {
    return avx512::plane_part<kBits, kPart>(units);
  }
  template <int kPart>
  static Ints add_high_bit(Ints codes, Ints units) {
    const __m512i bit = kPart < 2 ? _mm512_slli_epi16(units, 2 - kPart) : _mm512_srli_epi16(units, kPart - 2);
    return _mm512_or_si512(codes, _mm512_and_si512(bit, _mm512_set1_epi16(4)));
  }
  static Ints dot(Ints sum, std::int32_t pair, Ints codes) {
    return _mm512_dpwssd_epi32(sum, codes, _mm512_set1_epi32(pair));
  }
  static void store_integers(std::int16_t* p, Floats x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
  }
  static void store_integers(std::int16_t* p, Floats x, Floats next) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i packed = _mm512_packs_epi32(_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(next));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, packed));
  }

  static void sum_four(const Floats* x, float* out) { _mm_storeu_ps(out, quarters(avx512::sum_four(x))); }
  static void units_four(const Ints* x, float* unit, float* inverse) {
    const __m512i ab = _mm512_max_epu32(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    const __m512i cd = _mm512_max_epu32(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    const __m512i all = _mm512_max_epu32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
    const __m512i two = _mm512_max_epu32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    const __m512i one = _mm512_max_epu32(two, _mm512_shuffle_epi32(two, _MM_PERM_CDAB));
    units_of(_mm512_castsi512_si128(quarters(one)), unit, inverse);
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

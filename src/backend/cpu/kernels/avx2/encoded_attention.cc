#include "backend/cpu/kernels/encoded_attention.h"

#include "backend/cpu/kernels/avx2/attention_parts.h"
#include "backend/cpu/kernels/avx2/open_codes.h"
#include "backend/cpu/kernels/integer_units.h"

namespace kvasir::avx2 {
namespace {

struct Vectors {
  struct Floats {
    __m256 low, high;
  };
  struct Ints {
    __m256i low, high;
  };
  using Mask = Ints;
  static constexpr int kVectors = 1;
  static constexpr int kSums = 4;
  static constexpr int kQueries = 2;

  static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Floats load_halves(const std::byte* p) { return {load8<KvType::kF16>(p), load8<KvType::kF16>(p + 16)}; }
  static void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  // Zero, or c, in the lanes that are not of the mask.
  static Mask mask(std::uint16_t bits) { return {lanes_of(bits & 0xffU), lanes_of(bits >> 8)}; }
  static Floats mul(const Mask& mask, Floats a, Floats b) {
    return {_mm256_and_ps(_mm256_castsi256_ps(mask.low), _mm256_mul_ps(a.low, b.low)),
            _mm256_and_ps(_mm256_castsi256_ps(mask.high), _mm256_mul_ps(a.high, b.high))};
  }
  static Floats fma(const Mask& mask, Floats a, Floats b, Floats c) {
    const Floats sum = fma(a, b, c);
    return {_mm256_blendv_ps(c.low, sum.low, _mm256_castsi256_ps(mask.low)),
            _mm256_blendv_ps(c.high, sum.high, _mm256_castsi256_ps(mask.high))};
  }
  static Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
  static float sum(Floats x) { return sum16(x.low, x.high); }

  static Ints no_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static Ints magnitude(Floats x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(x.low), mask), _mm256_and_si256(_mm256_castps_si256(x.high), mask)};
  }
  static Ints most_bits(Ints a, Ints b) { return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)}; }
  static Ints load_codes(const std::int16_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 16))};
  }
  static Ints load_bytes(const std::byte* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  }
  static Ints load_units(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  template <int kBits, int kPart>
  static __m256i plane_part(__m256i units) {
    constexpr int kShift = kBits * kPart;
    const __m256i down = kShift > 0 ? _mm256_srli_epi16(units, kShift) : units;
    return kShift + kBits == 16 ? down : _mm256_and_si256(down, _mm256_set1_epi16((1 << kBits) - 1));
  }
  template <int kBits, int kPart>
  static Ints plane_part(Ints units) {
    return {plane_part<kBits, kPart>(units.low), plane_part<kBits, kPart>(units.high)};
  }
  template <int kPart>
  static __m256i add_high_bit(__m256i codes, __m256i units) {
    const __m256i bit = kPart < 2 ? _mm256_slli_epi16(units, 2 - kPart) : _mm256_srli_epi16(units, kPart - 2);
    return _mm256_or_si256(codes, _mm256_and_si256(bit, _mm256_set1_epi16(4)));
  }
  template <int kPart>
  static Ints add_high_bit(Ints codes, Ints units) {
    return {add_high_bit<kPart>(codes.low, units.low), add_high_bit<kPart>(codes.high, units.high)};
  }
  static Ints dot(Ints sum, std::int32_t pair, Ints codes) {
    const __m256i factor = _mm256_set1_epi32(pair);
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(codes.low, factor)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(codes.high, factor))};
  }
  // What overflows an integer is not finite: its unit is NaN, whatever the integers.
  static void store_integers(std::int16_t* p, Floats x) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  static void store_integers(std::int16_t* p, Floats x, Floats next) {
    store_integers(p, x);
    store_integers(p + 16, next);
  }

  static void sum_four(const Floats* x, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(x[i]);
  }
  // The greatest lanes of two vectors, in lanes 0 and 1, and 2 and 3.
  static __m128i most_of(Ints x, Ints y) {
    const __m256i a = _mm256_max_epu32(x.low, x.high);
    const __m256i b = _mm256_max_epu32(y.low, y.high);
    const __m256i four = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_max_epu32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  }
  static void units_four(const Ints* x, float* unit, float* inverse) {
    const __m128 first = _mm_castsi128_ps(most_of(x[0], x[1]));
    const __m128 second = _mm_castsi128_ps(most_of(x[2], x[3]));
    units_of(_mm_max_epu32(_mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0))),
                           _mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)))),
             unit, inverse);
  }

  static void open_codes(const EncodedSide& side, std::int16_t* words) { avx2::open_codes(side, words); }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_floats(const float* keys, int dim, const float* const (&from)[kQueries],
                                                  float* score) {
    alignas(32) float q[kMaxHeadDim * kQueries];
    for (int i = 0; i < kQueries; ++i)
      for (int d = 0; d < dim; ++d) q[d * kQueries + i] = from[i][d];
    page_scores<KvType::kF32, kQueries>(reinterpret_cast<const std::byte*>(keys), kSlotVectors * 16, dim, q, score);
  }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void weigh(const AttentionPartial& partial, const AttentionState& state, int first,
                                           const QueryBlock<kQueries>& block, int e, const SlotMask (&live)[kQueries],
                                           const float* score, float* weight, float* keep) {
    avx2::weigh<kQueries>(partial, state, first, block, e, live, score, weight, keep);
  }

  template <int kQueries>
  [[gnu::always_inline]] static void add_floats(const float* values, int dim, const SlotMask (&live)[kQueries],
                                                const float* weight, const float* keep, float* const* weighted) {
    add_all_values<KvType::kF32, kQueries>(reinterpret_cast<const std::byte*>(values), dim, live, weight, keep,
                                           weighted);
  }

  template <int kSlotVectors, class Block>
  [[gnu::always_inline]] static void query_blocks(int queries, const Block& block) {
    avx2::query_blocks(queries, block);
  }
};

}  // namespace

void attend_encoded(const AttentionPartial& partial, const AttentionState& state) {
  EncodedAttention<Vectors>::attend(partial, state);
}

}  // namespace kvasir::avx2

#define KVASIR_HALF_PANELS
#include "backend/cpu/kernels/quantized.h"

#include <immintrin.h>

#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

// All of the steps' prefetches, for instructions without separate steps.
template <int kFirst, int kSteps, class Fetch>
[[gnu::always_inline]] inline void fetch_before(const Fetch& fetch) {
  fetch.template before<kFirst>();
  if constexpr (kSteps > 1) fetch_before<kFirst + 1, kSteps - 1>(fetch);
}

struct Avx2 {
  static constexpr bool kFetches = true;
  static constexpr int kRowsAtOnce = 1;

  [[gnu::always_inline]] static Words shorts(const std::byte* p) {
    return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  [[gnu::always_inline]] static Floats halves(const std::byte* p) {
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  [[gnu::always_inline]] static Words eight_bits(Words values) { return values; }

  [[gnu::always_inline]] static Words bytes(const std::byte* p) {
    return reinterpret_cast<Words>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }

  [[gnu::always_inline]] static Words lookup(const std::uint8_t* table, Words codes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return reinterpret_cast<Words>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), reinterpret_cast<__m256i>(codes)));
  }

  [[gnu::always_inline]] static Words iq4_values(Words codes) {
    return lookup(reinterpret_cast<const std::uint8_t*>(kIq4Values), codes);
  }

  [[gnu::always_inline]] static Words gather(const std::uint32_t* table, Words indices) {
    return reinterpret_cast<Words>(
        _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), reinterpret_cast<__m256i>(indices), 4));
  }

  [[gnu::always_inline]] static __m256i four_inputs(const std::int8_t* a) {
    int four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
  }

  // Products of bytes come in pairs, as sums of 16 bits that must not overflow: inputs are -127 to 127.
  template <int kFirst, int kWords, int kMost, class Fetch>
  [[gnu::always_inline]] static Ints dot(Ints start, const Words* w, const std::int8_t* a, const Fetch& fetch) {
    w += kFirst;
    a += kFirst * 4;
    fetch_before<kFirst, kWords>(fetch);
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (kMost == 255) {
      // The products of |value| and the input with the value's sign: there is no offset for `start` to take away.
      __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int g = 0; g < kWords; ++g) {
        const auto value = reinterpret_cast<__m256i>(w[g]);
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(four_inputs(a + g * 4), value));
        sum[g % 2] = _mm256_add_epi32(sum[g % 2], _mm256_madd_epi16(pairs, ones));
      }
      return reinterpret_cast<Ints>(_mm256_add_epi32(sum[0], sum[1]));
    } else {
      constexpr int kFit = 32767 / (2 * 127 * kMost);  // sums of pairs whose sum fits 16 bits
      constexpr int kTogether = kFit < kWords ? kFit : kWords;
      static_assert(kWords % kTogether == 0);
      __m256i total = reinterpret_cast<__m256i>(start);
      for (int first = 0; first < kWords; first += kTogether) {
        __m256i pairs = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(w[first]), four_inputs(a + first * 4));
        for (int g = first + 1; g < first + kTogether; ++g)
          pairs =
              _mm256_add_epi16(pairs, _mm256_maddubs_epi16(reinterpret_cast<__m256i>(w[g]), four_inputs(a + g * 4)));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
      }
      return reinterpret_cast<Ints>(total);
    }
  }

  [[gnu::always_inline]] static Floats fma(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(
        _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
  }
};

}  // namespace

void avx2::quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end,
                            float* out, std::size_t out_stride) {
  kvasir::quantized_matmul<Avx2>(weights, x, panel_begin, panel_end, out, out_stride);
}

}  // namespace kvasir

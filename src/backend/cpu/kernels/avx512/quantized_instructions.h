// What quantized.h asks of an instruction set, with AVX-512 and VNNI. Internal to the translation unit that includes
// it.
#pragma once

#include <immintrin.h>

#include <utility>

#include "backend/cpu/kernels/quantized.h"
#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

struct Avx512 {
  static constexpr bool kFetches = true;

  [[gnu::always_inline]] static Words shorts(const std::byte* p) {
    return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }

  [[gnu::always_inline]] static Floats halves(const std::byte* p) {
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }

  [[gnu::always_inline]] static Words eight_bits(Words values) { return values ^ 0x80808080u; }

  [[gnu::always_inline]] static Words bytes(const std::byte* p) {
    return reinterpret_cast<Words>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  [[gnu::always_inline]] static Words lookup(const std::uint8_t* table, Words codes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return reinterpret_cast<Words>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), reinterpret_cast<__m512i>(codes)));
  }

  [[gnu::always_inline]] static Words gather(const std::uint32_t* table, Words indices) {
    return reinterpret_cast<Words>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(indices), table, 4));
  }

  [[gnu::always_inline]] static Words iq4_values(Words codes) {
    const __m128i table = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)),
                                        _mm_set1_epi8(static_cast<char>(0x80)));
    return reinterpret_cast<Words>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), reinterpret_cast<__m512i>(codes)));
  }

  // Loaded as one int, so that it becomes the broadcast memory operand of a product.
  [[gnu::always_inline]] static __m512i four_inputs(const std::int8_t* a) {
    int four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
  }

  static constexpr int kRowsAtOnce = 4;
  [[gnu::always_inline]] static Ints four_inputs_of(const std::int8_t* a) {
    return reinterpret_cast<Ints>(four_inputs(a));
  }
  // As an instruction of its own: around GCC 12's intrinsic sums are copied from register to register.
  [[gnu::always_inline]] static Ints add_product(Ints sum, Words w, Ints inputs) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(inputs));
    return sum;
  }

  // Two chains, so that one product need not wait for the one before.
  template <int kFirst, int kWords, int /*kMost*/, class Fetch>
  [[gnu::always_inline]] static Ints dot(Ints start, const Words* w, const std::int8_t* a, const Fetch& fetch) {
    __m512i chains[2] = {reinterpret_cast<__m512i>(start), _mm512_setzero_si512()};
    [&]<int... g>(std::integer_sequence<int, g...>) {
      ((fetch.template before<kFirst + g>(),
        chains[g % 2] = _mm512_dpbusd_epi32(chains[g % 2], reinterpret_cast<__m512i>(w[kFirst + g]),
                                            four_inputs(a + (kFirst + g) * 4))),
       ...);
    }
    (std::make_integer_sequence<int, kWords>{});
    return reinterpret_cast<Ints>(_mm512_add_epi32(chains[0], chains[1]));
  }

  [[gnu::always_inline]] static Floats fma(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
  }
};

}  // namespace
}  // namespace kvasir

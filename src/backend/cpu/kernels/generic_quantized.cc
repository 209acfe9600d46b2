#include <cmath>

#include "backend/cpu/kernels/generic.h"
#include "backend/cpu/kernels/quantized.h"

namespace kvasir {
namespace {

struct Generic {
  static constexpr bool kFetches = false;  // products take longer than memory does
  static constexpr int kRowsAtOnce = 1;

  [[gnu::always_inline]] static Words shorts(const std::byte* p) {
    std::uint16_t bits[kPanel];
    std::memcpy(bits, p, sizeof bits);
    Words words;
    for (int o = 0; o < kPanel; ++o) words[o] = bits[o];
    return words;
  }

  [[gnu::always_inline]] static Floats halves(const std::byte* p) {
    const Words bits = shorts(p);
    Floats floats;
    for (int o = 0; o < kPanel; ++o) floats[o] = f16_to_f32(static_cast<std::uint16_t>(bits[o]));
    return floats;
  }

  [[gnu::always_inline]] static Words eight_bits(Words values) { return values ^ 0x80808080u; }

  [[gnu::always_inline]] static Words bytes(const std::byte* p) {
    Words words;
    for (int o = 0; o < kPanel; ++o) words[o] = std::to_integer<std::uint32_t>(p[o]);
    return words;
  }

  // Maps each byte's 4-bit code to its byte of a table of 16.
  [[gnu::always_inline]] static Words lookup(const std::uint8_t* table, Words codes) {
    Words values{};
    for (int o = 0; o < kPanel; ++o)
      for (int shift = 0; shift < 32; shift += 8) values[o] |= std::uint32_t{table[codes[o] >> shift & 15]} << shift;
    return values;
  }

  // Maps each byte's 4-bit code to its table value plus 128.
  [[gnu::always_inline]] static Words iq4_values(Words codes) {
    return lookup(reinterpret_cast<const std::uint8_t*>(kIq4Values), codes) ^ 0x80808080u;
  }

  // The entries of a table at the indices.
  [[gnu::always_inline]] static Words gather(const std::uint32_t* table, Words indices) {
    Words entries;
    for (int o = 0; o < kPanel; ++o) entries[o] = table[indices[o]];
    return entries;
  }

  // start + the products of 4 * kWords inputs, from word kFirst on.
  template <int kFirst, int kWords, int /*kMost*/, class Fetch>
  [[gnu::always_inline]] static Ints dot(Ints start, const Words* w, const std::int8_t* a, const Fetch&) {
    for (int g = kFirst; g < kFirst + kWords; ++g)
      for (int k = 0; k < 4; ++k)
        start += reinterpret_cast<Ints>(byte_of(w[g], k)) * broadcast(static_cast<std::int32_t>(a[g * 4 + k]));
    return start;
  }

  [[gnu::always_inline]] static Floats fma(Floats a, Floats b, Floats c) {
    for (int o = 0; o < kPanel; ++o) c[o] = std::fma(a[o], b[o], c[o]);
    return c;
  }
};

}  // namespace

void generic::quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end,
                               float* out, std::size_t out_stride) {
  kvasir::quantized_matmul<Generic>(weights, x, panel_begin, panel_end, out, out_stride);
}

}  // namespace kvasir

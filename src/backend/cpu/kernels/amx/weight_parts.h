// The weights of a product on the tile unit: parts of a panel, each 32 inputs of 16 outputs, opened or where they lie.
// Internal to the translation unit that includes it, as it is compiled for AMX.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/quantized_instructions.h"

namespace kvasir::amx {
namespace {

// How much is opened at once. Many rows wait for the tile unit: long sums of four panels, and the rows of as many
// parts, stay in the second cache. Few rows wait for memory: so little that the weights fetched ahead meanwhile are
// those of the next block.
constexpr int kBlockParts = 64;
constexpr int kBlockPanels = 4;
constexpr int kFewRows = 2 * kRowGroup;
constexpr int kFewParts = 8;

// Parts of a panel, opened: u of quantized.h less its offset, and the scales and minima for its sums.
template <class B>
struct OpenParts {
  static constexpr bool kHalves = B::kTerms == Terms::kHalfOffset || B::kTerms == Terms::kHalfMinimum;
  static constexpr bool kMinima = B::kTerms == Terms::kMinimum || B::kTerms == Terms::kHalfMinimum;
  static constexpr int kSums = kHalves ? 2 : 1;  // of a part
  static constexpr int kFetchedBytes = 0;        // of a part, while it is multiplied: all were when parts were opened

  // Returns the weights of the part that is kNext behind `part`.
  template <int kNext>
  [[gnu::always_inline]] const void* weights_of(int part, int half) const {
    return weights[part + kNext] + half * 4 * kTileRowBytes;
  }
  template <int kNext>
  [[gnu::always_inline]] const Floats* scales_of(int part) const {
    return scale[part + kNext];
  }

  alignas(64) std::int8_t weights[kBlockParts][8 * kTileRowBytes];
  Floats scale[kBlockParts][kSums];
  Floats minus_minimum[kMinima ? kBlockParts : 1][kSums];

  // Opens `parts` parts (whole blocks) from `first` on, of the `blocks` blocks of `panel`.
  void open(const std::byte* panel, int blocks, int first, int parts) {
    Words offset{};
    if constexpr (!kMinima) offset += static_cast<std::uint32_t>(B::kOffset) * 0x01010101u;
    constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
    constexpr int kPartBytes = static_cast<int>(kBlockBytes) / B::kParts;
    constexpr int kPartLines = (kPartBytes + 63) / 64;
    const int first_block = first / B::kParts;
    const std::byte* ahead = panel + static_cast<std::size_t>(first_block) * kBlockBytes + kPrefetchBytes;
    for (int b = 0; b * B::kParts < parts; ++b, ahead += kBlockBytes) {
      const QuantizedLayout::Place place = B::kLayout.place(first_block + b, blocks);
      const B block(panel + place.words, panel + place.tail, 0);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) {
        const Prefetches<kPartLines> fetch{ahead + part * kPartBytes};
        const int to_part = b * B::kParts + part;
        Words w[8];
        block.weights(part, w);
        std::int8_t* to = weights[to_part];
        [&]<int... g>(std::integer_sequence<int, g...>) {
          ((fetch.template before<g>(),
            _mm512_store_si512(to + g * kTileRowBytes,
                               _mm512_sub_epi8(reinterpret_cast<__m512i>(w[g]), reinterpret_cast<__m512i>(offset)))),
           ...);
        }
        (std::make_integer_sequence<int, 8>{});
        for (int half = 0; half < kSums; ++half) {
          scale[to_part][half] = block.scale(part, half);
          if constexpr (kMinima) minus_minimum[to_part][half] = block.minus_minimum(part, half);
        }
      }
    }
  }
};

// Parts of a panel of Q8_0 where they lie: their bytes are those of a tile.
template <class B>
struct StoredParts {
  static_assert(B::kTerms == Terms::kOffset && B::kParts == 1 && B::kOffset == 128);
  static constexpr bool kHalves = false;
  static constexpr bool kMinima = false;
  static constexpr int kSums = 1;
  static constexpr int kBytes = static_cast<int>(B::kLayout.panel_block_bytes());
  static constexpr int kFetchedBytes = kBytes;

  // As of OpenParts. REQUIRES: `part` is even.
  template <int kNext>
  [[gnu::always_inline]] const void* weights_of(int part, int) const {
    return data + part * kBytes + kPlaces[kNext].words;
  }
  template <int kNext>
  [[gnu::always_inline]] std::array<Floats, 1> scales_of(int part) const {
    return {Avx512::halves(data + part * kBytes + kPlaces[kNext].tail)};
  }

  // As of OpenParts. REQUIRES: `blocks` and `first` are even.
  void open(const std::byte* panel, int /*blocks*/, int first, int /*parts*/) {
    data = panel + static_cast<std::size_t>(first) * kBytes;
  }

  static constexpr QuantizedLayout::Place kPlaces[4] = {B::kLayout.place(0, 4), B::kLayout.place(1, 4),
                                                        B::kLayout.place(2, 4), B::kLayout.place(3, 4)};
  const std::byte* data = nullptr;
};

}  // namespace
}  // namespace kvasir::amx

// Sides of encoded pages, opened for products. Written once, over vectors of 16 lanes (avx512/simd.h); compiled for
// each instruction set by the file that includes it.
#pragma once

#include "backend/cpu/kernels/code_vectors.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/pages/decode_page.h"
#include "backend/cpu/kernels/unrolled.h"

namespace kvasir {
namespace {

inline constexpr int kMaxOutliers = kMaxCodes / 100 + 1;  // of a side

// How a side's codes are read: see code_vectors.h.
enum class CodeSource { kPlain, kWords, kBytes, kPlane4, kPlane2, kPlanes3 };

// Returns how to read a side whose rows (dimensions of keys, slots of values) have `row_vectors` vectors. Planes can be
// read directly only where a row has 2 vectors (keys), or 4 or 8 (values).
template <int kSlotVectors>
inline CodeSource code_source(KvType type, bool keys, int row_vectors) {
  if (!is_encoded(type)) return CodeSource::kPlain;
  if (type == KvType::kQ8) return CodeSource::kBytes;
  if (kSlotVectors != 2 || !(keys || row_vectors == 4 || row_vectors == 8)) return CodeSource::kWords;
  return type == KvType::kQ3 ? CodeSource::kPlanes3 : type == KvType::kQ2 ? CodeSource::kPlane2 : CodeSource::kPlane4;
}

// One side of a page.
struct OpenSide {
  EncodedSide side;
  CodeSource source = CodeSource::kPlain;
  union {
    alignas(64) std::int16_t codes[kMaxCodes];  // kWords: as in page_layout.h
    alignas(64) float plain[kMaxCodes];         // kPlain: [rows][count]
  };
  // Outliers, in order of place: the element's row, its place in the row, and its distance from the value of code 0.
  int outliers = 0;
  std::uint16_t row[kMaxOutliers];
  std::uint16_t place[kMaxOutliers];
  float beyond[kMaxOutliers];

  OpenSide() {}  // leaves the arrays as they are
};

template <class Simd>
struct SideOpener {
  using Ints = typename Simd::Ints;

  static void open_outliers(const EncodedSide& side, OpenSide& open) {
    // Exact for places below 2^15, and rows of at least 16 and at most 512 elements: pages with values have no others.
    const std::uint64_t reciprocal = (1U << 24) / static_cast<unsigned>(side.count) + 1;
    for (int o = 0; o < side.outliers; ++o) {
      const std::byte* at = side.places + static_cast<std::size_t>(o) * kOutlierBytes;
      std::uint16_t place;
      __builtin_memcpy(&place, at, sizeof place);
      if (place == kNoPlace) return;
      const int row = static_cast<int>(place * reciprocal >> 24);
      const int i = place - row * side.count;
      open.row[open.outliers] = static_cast<std::uint16_t>(row);
      open.place[open.outliers] = static_cast<std::uint16_t>(i);
      open.beyond[open.outliers] = half_at(at + 2) - half_number(side.least, i / kCodecGroup * side.rows + row);
      ++open.outliers;
    }
  }

  static void open_plain(KvType type, const std::byte* side, int elements, float* plain) {
    if (type != KvType::kF16) return load_side(type, side, elements, plain);
    for (int i = 0; i < elements; i += 16)
      Simd::store(plain + i, Simd::template load_elements<KvType::kF16>(side + i * 2));
  }

  template <int kBits>
  static void open_blocks(const std::byte* plane, int codes, std::int16_t* words) {
    constexpr int kBlock = kPlaneUnits * 16 / kBits;
    int at = 0;
    for (; at + kBlock <= codes; at += kBlock, plane += 64) {
      const Ints units = Simd::load_units(plane);
      unrolled<16 / kBits>([&](auto part) __attribute__((always_inline)) {
        constexpr int kPart = decltype(part)::value;
        Simd::store_codes(words + at + kPart * kPlaneUnits, Simd::template plane_part<kBits, kPart>(units));
      });
    }
    if (at < codes) open_plane<kBits>(plane - at * kBits / 8, at, codes, words);
  }

  // As kvasir::open_codes. words: 64-byte aligned.
  static void open_codes(const EncodedSide& side, std::int16_t* words) {
    switch (side.type) {
      case KvType::kQ8:
        for (int i = 0; i < side.codes; i += 32) Simd::store_codes(words + i, Simd::load_bytes(side.data + i));
        return;
      case KvType::kQ3: {
        open_blocks<2>(side.data, side.codes, words);
        const std::byte* high = side.data + side.codes / 4;
        int at = 0;
        for (; at + 512 <= side.codes; at += 512, high += 64) {
          const Ints units = Simd::load_units(high);
          unrolled<16>([&](auto part) __attribute__((always_inline)) {
            std::int16_t* of_part = words + at + decltype(part)::value * kPlaneUnits;
            Simd::store_codes(of_part,
                              Simd::template add_high_bit<decltype(part)::value>(Simd::load_codes(of_part), units));
          });
        }
        if (at == side.codes) return;
        std::int16_t bits[512];
        open_plane<1>(high, 0, side.codes - at, bits);
        for (int i = at; i < side.codes; ++i) words[i] = static_cast<std::int16_t>(words[i] | bits[i - at] << 2);
        return;
      }
      case KvType::kQ2: return open_blocks<2>(side.data, side.codes, words);
      default: return open_blocks<4>(side.data, side.codes, words);
    }
  }

  // `of_first`: of the run's first page.
  static void open_side(const EncodedSide& of_first, const std::byte* first_page, const std::byte* page,
                        OpenSide& open) {
    EncodedSide& side = open.side;
    side = of_first;
    side.data = page + (of_first.data - first_page);
    side.scale = page + (of_first.scale - first_page);
    if (side.least != nullptr) side.least = page + (of_first.least - first_page);
    if (side.places != nullptr) side.places = page + (of_first.places - first_page);
    open.outliers = 0;
    if (side.outliers != 0) open_outliers(side, open);
    if (open.source == CodeSource::kWords) open_codes(side, open.codes);
  }
};

}  // namespace
}  // namespace kvasir

#include "backend/cpu/kernels/pages/word_page.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/integer_products.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/pages/page_layout.h"

namespace kvasir {
namespace {

// A token's key, or its value.
struct Words {
  std::int16_t n[kMaxHeadDim + 1];
  float scale = 0;

  void set(const float* x, int count) {
    std::int32_t most = 0;  // the bits of the greatest magnitude; those of infinity and NaN are greater than all others
    for (int i = 0; i < count; ++i) most = std::max(most, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
    const float highest = std::bit_cast<float>(most);
    const bool finite = most < 0x7f800000;
    scale = finite ? highest * (1.0F / kMostWord) : std::numeric_limits<float>::quiet_NaN();
    if (!finite || highest < kLeastInteger) {
      std::fill_n(n, count, std::int16_t{0});
    } else {
      const float inverse = kMostWord / highest;
      // Adding 1.5 * 2^23 leaves the nearest integer, half to even, in the low bits.
      for (int i = 0; i < count; ++i)
        n[i] = static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(x[i] * inverse + 12582912.0F));
    }
    n[count] = 0;
  }
};

void put(const WordSide<std::byte>& side, bool keys, int slot, int count, const Words& words) {
  if (keys) {
    // A pair of dimensions lies together.
    for (int d = 0; d < count; d += 2) std::memcpy(side.at(d, slot), words.n + d, 2 * sizeof(std::int16_t));
  } else {
    for (int i = 0; i < count; ++i) std::memcpy(side.at(slot, i), words.n + i, sizeof(std::int16_t));
  }
  std::memcpy(side.scale_at(slot), &words.scale, sizeof words.scale);
}

void take(const WordSide<const std::byte>& side, bool keys, int slot, int count, Words& words) {
  for (int i = 0; i < count; ++i)
    words.n[i] = static_cast<std::int16_t>(keys ? side.integer(i, slot) : side.integer(slot, i));
  words.n[count] = 0;
  words.scale = side.scale(slot);
}

// The key of a slot, rotated.
void rotate(Words& words, int dims, int rotary, const float* cosine, const float* sine) {
  float x[kMaxHeadDim];
  for (int d = 0; d < dims; ++d) x[d] = words.scale * static_cast<float>(words.n[d]);
  generic_kernels().rope(x, 1, dims, rotary, cosine, sine, 1.0F, x);
  words.set(x, dims);
}

}  // namespace

void store_words(const PageFormat& format, std::byte* page, int slot, const float* key, const float* value) {
  Words words;
  words.set(key, format.head_dim);
  put(word_keys(format, page), true, slot, format.head_dim, words);
  if (format.latent) return;
  words.set(value, format.head_dim);
  put(word_values(format, page), false, slot, format.head_dim, words);
}

void rotate_words(const PageFormat& format, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                  const float* sine) {
  Words words;
  for (; slots != 0; slots &= slots - 1) {
    const int slot = std::countr_zero(slots);
    take(word_keys<const std::byte>(format, page), true, slot, format.head_dim, words);
    rotate(words, format.head_dim, rotary, cosine, sine);
    put(word_keys(format, page), true, slot, format.head_dim, words);
  }
}

void move_words(const PageFormat& format, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                int rotary, const float* cosine, const float* sine) {
  Words words;
  for (; from_slots != 0; from_slots &= from_slots - 1, ++to_slot) {
    const int slot = std::countr_zero(from_slots);
    take(word_keys(format, from), true, slot, format.head_dim, words);
    if (cosine != nullptr) rotate(words, format.head_dim, rotary, cosine, sine);
    put(word_keys(format, to), true, to_slot, format.head_dim, words);
    if (format.latent) continue;
    take(word_values(format, from), false, slot, format.head_dim, words);
    put(word_values(format, to), false, to_slot, format.head_dim, words);
  }
}

void take_word_row(const PageFormat& format, const std::byte* page, int slot, std::byte* row) {
  const auto write = [&](const WordSide<const std::byte>& side, bool keys, int count) {
    Words words;
    take(side, keys, slot, format.head_dim, words);
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int16_t);
    std::memcpy(row, words.n, bytes);
    std::memcpy(row + bytes, &words.scale, sizeof words.scale);
    row += bytes + sizeof words.scale;
  };
  write(word_keys(format, page), true, (format.head_dim + 1) / 2 * 2);
  if (!format.latent) write(word_values(format, page), false, format.head_dim);
}

void place_word_row(const PageFormat& format, const std::byte* row, int slot, std::byte* page) {
  const auto read = [&](const WordSide<std::byte>& side, bool keys, int count) {
    Words words;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int16_t);
    std::memcpy(words.n, row, bytes);
    std::memcpy(&words.scale, row + bytes, sizeof words.scale);
    row += bytes + sizeof words.scale;
    put(side, keys, slot, format.head_dim, words);
  };
  read(word_keys(format, page), true, (format.head_dim + 1) / 2 * 2);
  if (!format.latent) read(word_values(format, page), false, format.head_dim);
}

}  // namespace kvasir

// Compiled for this machine's AVX-512: a baseline that lost for want of vectors would prove nothing.
#include "copying_cache.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

namespace kvasir::bench {

CopyingCache::CopyingCache(int heads, int head_dim, int capacity)
    : heads_(heads), head_dim_(head_dim), capacity_(capacity) {
  const auto size = static_cast<std::size_t>(heads * head_dim) * static_cast<std::size_t>(capacity);
  for (std::vector<std::uint16_t>* array : {&keys_, &values_, &new_keys_, &new_values_, &rotated_})
    array->assign(size, 0x3c00);
  for (int t = 0; t < capacity; ++t)
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = t * std::pow(10000.0, -2.0 * i / head_dim);
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
}

std::size_t CopyingCache::bytes_moved_by_step() const {
  return 2 * 2 * keys_.size() * sizeof(std::uint16_t);
}

std::size_t CopyingCache::bytes_moved_by_rotate() const {
  return 2 * keys_.size() * sizeof(std::uint16_t);
}

void CopyingCache::step(int index, const std::uint16_t* key, const std::uint16_t* value) {
  const auto dim = static_cast<std::size_t>(head_dim_);
  const auto concatenate = [&](std::vector<std::uint16_t>& from, std::vector<std::uint16_t>& to,
                               const std::uint16_t* added) {
    const auto before = static_cast<std::size_t>(index) * dim;
    const auto behind = static_cast<std::size_t>(capacity_ - index - 1) * dim;
    for (int h = 0; h < heads_; ++h) {
      const std::size_t head = static_cast<std::size_t>(h) * static_cast<std::size_t>(capacity_) * dim;
      std::memcpy(to.data() + head, from.data() + head, before * 2);
      std::memcpy(to.data() + head + before, from.data() + head + before + dim, behind * 2);
      std::memcpy(to.data() + head + before + behind, added + static_cast<std::size_t>(h) * dim, dim * 2);
    }
    std::swap(from, to);
  };
  concatenate(keys_, new_keys_, key);
  concatenate(values_, new_values_, value);
}

// Halves of a head are rotated against each other, as the published code does (rotate_half).
const std::uint16_t* CopyingCache::rotate() {
  const int half = head_dim_ / 2;
  const std::uint16_t* from = keys_.data();
  std::uint16_t* to = rotated_.data();
  for (int h = 0; h < heads_; ++h)
    for (int t = 0; t < capacity_; ++t, from += head_dim_, to += head_dim_) {
      const float* cosine = cosine_.data() + static_cast<std::ptrdiff_t>(t) * half;
      const float* sine = sine_.data() + static_cast<std::ptrdiff_t>(t) * half;
      for (int i = 0; i < half; i += 16) {
        const __m512 a = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
        const __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half + i)));
        const __m512 c = _mm512_loadu_ps(cosine + i);
        const __m512 s = _mm512_loadu_ps(sine + i);
        const __m512 x = _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s));
        const __m512 y = _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + half + i), _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
      }
    }
  return rotated_.data();
}

}  // namespace kvasir::bench

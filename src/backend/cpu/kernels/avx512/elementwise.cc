#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/page_layout.h"

namespace kvasir::avx512 {
namespace {

[[gnu::always_inline]] inline __mmask16 tail(int left) {
  return left >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << left) - 1);
}

template <KvType kType>
void store_kv_as(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  std::byte* values = page + values_offset(shape) + static_cast<std::size_t>(slot) * value_bytes(shape);
  for (int d = 0; d < shape.head_dim; d += 16) {
    const __mmask16 mask = tail(shape.head_dim - d);
    store16<kType>(values + static_cast<std::size_t>(d) * kSize, mask, _mm512_maskz_loadu_ps(mask, value + d));
    alignas(64) std::byte converted[64];
    store16<kType>(converted, 0xffff, _mm512_maskz_loadu_ps(mask, key + d));
    const int lanes = shape.head_dim - d < 16 ? shape.head_dim - d : 16;
    for (int i = 0; i < lanes; ++i)
      __builtin_memcpy(page + static_cast<std::size_t>((d + i) * shape.slots + slot) * kSize,
                       converted + static_cast<std::size_t>(i) * kSize, kSize);
  }
}

template <KvType kType>
void rotate_keys_as(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                    const float* sine) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
  for (int i = 0; i < rotary / 2; ++i) {
    std::byte* row_a = page + static_cast<std::size_t>(2 * i) * row_bytes;
    std::byte* row_b = row_a + row_bytes;
    const __m512 c = _mm512_set1_ps(cosine[i]);
    const __m512 s = _mm512_set1_ps(sine[i]);
    for (int slot = 0; slot < shape.slots; slot += 16) {
      const auto mask = static_cast<__mmask16>(slots >> slot & 0xffff);
      if (mask == 0) continue;
      std::byte* at_a = row_a + static_cast<std::size_t>(slot) * kSize;
      std::byte* at_b = row_b + static_cast<std::size_t>(slot) * kSize;
      const __m512 a = load16<kType>(at_a);
      const __m512 b = load16<kType>(at_b);
      store16<kType>(at_a, mask, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
      store16<kType>(at_b, mask, _mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c)));
    }
  }
}

// The sixteen slots from `slot` on are read whole before their live ones are written at or before where they were.
template <KvType kType>
void move_slots_as(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                   int rotary, const float* cosine, const float* sine) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
  const int rotated = cosine != nullptr ? rotary : 0;
  for (int slot = 0; slot < shape.slots; slot += 16) {
    const auto mask = static_cast<__mmask16>(from_slots >> slot & 0xffff);
    if (mask == 0) continue;
    const int count = __builtin_popcount(mask);
    const auto out = static_cast<__mmask16>((1u << count) - 1);
    const std::byte* source = from + static_cast<std::size_t>(slot) * kSize;
    std::byte* target = to + static_cast<std::size_t>(to_slot) * kSize;
    for (int i = 0; i < rotated / 2; ++i, source += 2 * row_bytes, target += 2 * row_bytes) {
      const __m512 c = _mm512_set1_ps(cosine[i]);
      const __m512 s = _mm512_set1_ps(sine[i]);
      const __m512 a = load16<kType>(source);
      const __m512 b = load16<kType>(source + row_bytes);
      const __m512 x = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
      const __m512 y = _mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c));
      store16<kType>(target, out, _mm512_maskz_compress_ps(mask, x));
      store16<kType>(target + row_bytes, out, _mm512_maskz_compress_ps(mask, y));
    }
    for (int d = rotated; d < shape.head_dim; ++d, source += row_bytes, target += row_bytes)
      store16<kType>(target, out, _mm512_maskz_compress_ps(mask, load16<kType>(source)));
    to_slot += count;
  }
}

[[gnu::always_inline]] inline __m512 silu(__m512 x) {
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0F), exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// erfc(z) = p(t) exp(-z^2), t = 1 / (1 + 0.3275911 z), for z >= 0: Abramowitz & Stegun 7.1.26, off by 1.5e-7 at most.
[[gnu::always_inline]] inline __m512 gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678F));
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911F), one));
  __m512 p = _mm512_set1_ps(1.061405429F);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592F));
  const __m512 square = _mm512_mul_ps(z, _mm512_sub_ps(_mm512_setzero_ps(), z));
  const __m512 tail_area = _mm512_mul_ps(_mm512_mul_ps(p, t), exp16(square));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  const __m512 area = _mm512_mask_blend_ps(negative, _mm512_sub_ps(_mm512_set1_ps(2.0F), tail_area), tail_area);
  return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5F)), area);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
[[gnu::always_inline]] inline __m512 gelu_tanh(__m512 x) {
  const __m512 factor =
      _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.0713548163F), _mm512_set1_ps(-1.59576912F));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0F), exp16(_mm512_mul_ps(x, factor))));
}

template <__m512 kFunction(__m512)>
void activate_by(const float* x, const float* factor, int n, float* out) {
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = tail(n - i);
    const __m512 y = kFunction(_mm512_maskz_loadu_ps(mask, x + i));
    _mm512_mask_storeu_ps(out + i, mask,
                          factor != nullptr ? _mm512_mul_ps(y, _mm512_maskz_loadu_ps(mask, factor + i)) : y);
  }
}

}  // namespace

void quantize_q8(const float* x, int inputs, const MutableQ8Rows& place) {
  const __m512 magnitude = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  for (int b = 0; b < inputs / kQ8Block; ++b, x += kQ8Block) {
    const MutableQ8Rows to = place.at(static_cast<std::size_t>(b) * kRowGroup);
    const __m512 x0 = _mm512_loadu_ps(x);
    const __m512 x1 = _mm512_loadu_ps(x + 16);
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_and_ps(x0, magnitude), _mm512_and_ps(x1, magnitude)));
    constexpr int kNotFinite = 0x01 | 0x08 | 0x10 | 0x80;  // quiet NaN, the infinities, signalling NaN
    const bool finite = (_mm512_fpclass_ps_mask(x0, kNotFinite) | _mm512_fpclass_ps_mask(x1, kNotFinite)) == 0;
    const __m512 inverse = _mm512_set1_ps(largest >= kQ8Smallest ? 127.0F / largest : 0.0F);
    const auto all = static_cast<__mmask16>(finite ? 0xffff : 0);
    const __m512i q0 = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(x0, inverse));
    const __m512i q1 = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(x1, inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.quants), _mm512_cvtsepi32_epi8(q0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.quants + 16), _mm512_cvtsepi32_epi8(q1));
    const int first = _mm512_reduce_add_epi32(q0);
    const int second = _mm512_reduce_add_epi32(q1);
    *to.scale = finite ? largest / 127.0F : __builtin_nanf("");
    *to.scaled_sum = *to.scale * static_cast<float>(first + second);
    *to.sum = -128 * (first + second);
    to.half_sum[0] = -128 * first;
    to.half_sum[1] = -128 * second;
  }
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  __m512 lanes = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(tail(n - i), x + i);
    lanes = _mm512_fmadd_ps(v, v, lanes);
  }
  const __m512 inverse = _mm512_set1_ps(1.0F / __builtin_sqrtf(sum16(lanes) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = tail(n - i);
    const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), inverse);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i)));
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
  __m512 lanes = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) lanes = _mm512_add_ps(lanes, _mm512_maskz_loadu_ps(tail(n - i), x + i));
  const __m512 mean = _mm512_set1_ps(sum16(lanes) / static_cast<float>(n));
  lanes = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = tail(n - i);
    const __m512 v = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), mean);
    lanes = _mm512_fmadd_ps(v, v, lanes);
  }
  const __m512 inverse = _mm512_set1_ps(1.0F / __builtin_sqrtf(sum16(lanes) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = tail(n - i);
    const __m512 v = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean), inverse);
    _mm512_mask_storeu_ps(out + i, mask,
                          _mm512_add_ps(_mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i)),
                                        _mm512_maskz_loadu_ps(mask, bias + i)));
  }
}

void activate(ActivationFunction function, const float* x, const float* factor, int n, float* out) {
  switch (function) {
    case ActivationFunction::kSilu: return activate_by<silu>(x, factor, n, out);
    case ActivationFunction::kGelu: return activate_by<gelu>(x, factor, n, out);
    case ActivationFunction::kGeluTanh: return activate_by<gelu_tanh>(x, factor, n, out);
  }
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = tail(n - i);
    _mm512_mask_storeu_ps(x + i, mask,
                          _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_maskz_loadu_ps(mask, y + i)));
  }
}

void store_kv(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value) {
  if (shape.key != shape.value) return generic_kernels().store_kv(shape, page, slot, key, value);
  switch (shape.key) {
    case KvType::kF32: return store_kv_as<KvType::kF32>(shape, page, slot, key, value);
    case KvType::kF16: return store_kv_as<KvType::kF16>(shape, page, slot, key, value);
    case KvType::kBF16: return store_kv_as<KvType::kBF16>(shape, page, slot, key, value);
    default: return;
  }
}

void rotate_keys(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                 const float* sine) {
  switch (shape.key) {
    case KvType::kF32: return rotate_keys_as<KvType::kF32>(shape, page, slots, rotary, cosine, sine);
    case KvType::kF16: return rotate_keys_as<KvType::kF16>(shape, page, slots, rotary, cosine, sine);
    case KvType::kBF16: return rotate_keys_as<KvType::kBF16>(shape, page, slots, rotary, cosine, sine);
    default: return;
  }
}

void move_slots(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                int rotary, const float* cosine, const float* sine) {
  switch (shape.key) {
    case KvType::kF32: move_slots_as<KvType::kF32>(shape, from, from_slots, to, to_slot, rotary, cosine, sine); break;
    case KvType::kF16: move_slots_as<KvType::kF16>(shape, from, from_slots, to, to_slot, rotary, cosine, sine); break;
    case KvType::kBF16: move_slots_as<KvType::kBF16>(shape, from, from_slots, to, to_slot, rotary, cosine, sine); break;
    default: return;
  }
  const std::size_t bytes = value_bytes(shape);
  std::byte* target = to + values_offset(shape) + static_cast<std::size_t>(to_slot) * bytes;
  for (SlotMask left = from_slots; left != 0; left &= left - 1, target += bytes)
    __builtin_memmove(target, from + values_offset(shape) + static_cast<std::size_t>(__builtin_ctzll(left)) * bytes,
                      bytes);
}

double sum_weights(const float* weights, int n) {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
  for (int i = 0; i < n; i += 16) {
    const __m512 w = _mm512_maskz_loadu_ps(tail(n - i), weights + i);
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(w)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(w, 1)));
  }
  const __m512d s8 = _mm512_add_pd(low, high);
  const __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

void add_weights(const float* weights, int n, double factor, double* mass) {
  const __m512d f = _mm512_set1_pd(factor);
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m512d w = _mm512_cvtps_pd(_mm256_loadu_ps(weights + i));
    _mm512_storeu_pd(mass + i, _mm512_add_pd(_mm512_loadu_pd(mass + i), _mm512_mul_pd(f, w)));
  }
  for (; i < n; ++i) mass[i] += factor * static_cast<double>(weights[i]);
}

}  // namespace kvasir::avx512

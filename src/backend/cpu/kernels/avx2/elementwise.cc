#include "backend/cpu/kernels/avx2/simd.h"
#include "backend/cpu/kernels/page_layout.h"

namespace kvasir::avx2 {
namespace {

// 8 of `left` floats; zeros behind them.
[[gnu::always_inline]] inline __m256 load_first(const float* p, int left) {
  return left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(left));
}

[[gnu::always_inline]] inline void store_floats(float* p, int left, __m256 v) {
  if (left >= 8) {
    _mm256_storeu_ps(p, v);
  } else {
    _mm256_maskstore_ps(p, first_lanes(left), v);
  }
}

template <KvType kType>
void store_kv_as(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value) {
  constexpr std::size_t kSize = kElementBytes<kType>;
  std::byte* values = page + values_offset(shape) + static_cast<std::size_t>(slot) * value_bytes(shape);
  for (int d = 0; d < shape.head_dim; d += 8) {
    const int count = shape.head_dim - d < 8 ? shape.head_dim - d : 8;
    store_first<kType>(values + static_cast<std::size_t>(d) * kSize, count, load_first(value + d, count));
    alignas(32) std::byte converted[32];
    store_first<kType>(converted, 8, load_first(key + d, count));
    for (int i = 0; i < count; ++i)
      __builtin_memcpy(page + static_cast<std::size_t>((d + i) * shape.slots + slot) * kSize,
                       converted + static_cast<std::size_t>(i) * kSize, kSize);
  }
}

template <KvType kType>
void rotate_keys_as(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                    const float* sine) {
  constexpr std::size_t kSize = kElementBytes<kType>;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
  for (int i = 0; i < rotary / 2; ++i) {
    std::byte* row_a = page + static_cast<std::size_t>(2 * i) * row_bytes;
    std::byte* row_b = row_a + row_bytes;
    const __m256 c = _mm256_set1_ps(cosine[i]);
    const __m256 s = _mm256_set1_ps(sine[i]);
    for (int slot = 0; slot < shape.slots; slot += 8) {
      const auto mask = static_cast<unsigned>(slots >> slot & 0xff);
      if (mask == 0) continue;
      const __m256i lanes = lanes_of(mask);
      std::byte* at_a = row_a + static_cast<std::size_t>(slot) * kSize;
      std::byte* at_b = row_b + static_cast<std::size_t>(slot) * kSize;
      const __m256 a = load8<kType>(at_a);
      const __m256 b = load8<kType>(at_b);
      blend_store8<kType>(at_a, lanes, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
      blend_store8<kType>(at_b, lanes, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
    }
  }
}

// The eight slots from `slot` on are read whole before their live ones are written at or before where they were.
template <KvType kType>
void move_slots_as(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                   int rotary, const float* cosine, const float* sine) {
  constexpr std::size_t kSize = kElementBytes<kType>;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
  const int rotated = cosine != nullptr ? rotary : 0;
  for (int slot = 0; slot < shape.slots; slot += 8) {
    const auto mask = static_cast<unsigned>(from_slots >> slot & 0xff);
    if (mask == 0) continue;
    const int count = __builtin_popcount(mask);
    const std::byte* source = from + static_cast<std::size_t>(slot) * kSize;
    std::byte* target = to + static_cast<std::size_t>(to_slot) * kSize;
    for (int i = 0; i < rotated / 2; ++i, source += 2 * row_bytes, target += 2 * row_bytes) {
      const __m256 c = _mm256_set1_ps(cosine[i]);
      const __m256 s = _mm256_set1_ps(sine[i]);
      const __m256 a = load8<kType>(source);
      const __m256 b = load8<kType>(source + row_bytes);
      const __m256 x = _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s));
      const __m256 y = _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c));
      store_first<kType>(target, count, compress8(mask, x));
      store_first<kType>(target + row_bytes, count, compress8(mask, y));
    }
    for (int d = rotated; d < shape.head_dim; ++d, source += row_bytes, target += row_bytes)
      store_first<kType>(target, count, compress8(mask, load8<kType>(source)));
    to_slot += count;
  }
}

[[gnu::always_inline]] inline int sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}

[[gnu::always_inline]] inline __m256 silu(__m256 x) {
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0F), exp8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

// erfc(z) = p(t) exp(-z^2), t = 1 / (1 + 0.3275911 z), for z >= 0: Abramowitz & Stegun 7.1.26, off by 1.5e-7 at most.
[[gnu::always_inline]] inline __m256 gelu(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 z = _mm256_mul_ps(_mm256_and_ps(x, magnitude), _mm256_set1_ps(0.70710678F));
  const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(z, _mm256_set1_ps(0.3275911F), one));
  __m256 p = _mm256_set1_ps(1.061405429F);
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-1.453152027F));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(1.421413741F));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-0.284496736F));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(0.254829592F));
  const __m256 square = _mm256_mul_ps(z, _mm256_sub_ps(_mm256_setzero_ps(), z));
  const __m256 tail_area = _mm256_mul_ps(_mm256_mul_ps(p, t), exp8(square));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  const __m256 area = _mm256_blendv_ps(_mm256_sub_ps(_mm256_set1_ps(2.0F), tail_area), tail_area, negative);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(0.5F)), area);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
[[gnu::always_inline]] inline __m256 gelu_tanh(__m256 x) {
  const __m256 factor =
      _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(-0.0713548163F), _mm256_set1_ps(-1.59576912F));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0F), exp8(_mm256_mul_ps(x, factor))));
}

template <__m256 kFunction(__m256)>
void activate_by(const float* x, const float* factor, int n, float* out) {
  for (int i = 0; i < n; i += 8) {
    const __m256 y = kFunction(load_first(x + i, n - i));
    store_floats(out + i, n - i, factor != nullptr ? _mm256_mul_ps(y, load_first(factor + i, n - i)) : y);
  }
}

}  // namespace

void quantize_q8(const float* x, int inputs, const MutableQ8Rows& place) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i infinity = _mm256_set1_epi32(0x7f800000);
  for (int b = 0; b < inputs / kQ8Block; ++b, x += kQ8Block) {
    const MutableQ8Rows to = place.at(static_cast<std::size_t>(b) * kRowGroup);
    __m256 v[4];
    __m256 largest8 = _mm256_setzero_ps();
    __m256i finite8 = _mm256_set1_epi32(-1);
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + i * 8);
      const __m256i size = _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude);
      finite8 = _mm256_and_si256(finite8, _mm256_cmpgt_epi32(infinity, size));
      largest8 = _mm256_max_ps(largest8, _mm256_castsi256_ps(size));
    }
    const float largest = max16(largest8, largest8);
    const bool finite = _mm256_movemask_epi8(finite8) == -1;
    const __m256 inverse = _mm256_set1_ps(largest >= kQ8Smallest ? 127.0F / largest : 0.0F);
    const __m256i all = _mm256_set1_epi32(finite ? -1 : 0);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_and_si256(all, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)));
    // Packing takes the halves of both operands in turns; the permutation puts them in order.
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.quants),
                        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    const int first = sum_of(_mm256_add_epi32(q[0], q[1]));
    const int second = sum_of(_mm256_add_epi32(q[2], q[3]));
    *to.scale = finite ? largest / 127.0F : __builtin_nanf("");
    *to.scaled_sum = *to.scale * static_cast<float>(first + second);
    *to.sum = -128 * (first + second);
    to.half_sum[0] = -128 * first;
    to.half_sum[1] = -128 * second;
  }
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int i = 0; i < n; i += 8) {
    const __m256 v = load_first(x + i, n - i);
    lanes[i / 8 % 2] = _mm256_fmadd_ps(v, v, lanes[i / 8 % 2]);
  }
  const __m256 inverse =
      _mm256_set1_ps(1.0F / __builtin_sqrtf(sum16(lanes[0], lanes[1]) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_mul_ps(load_first(x + i, n - i), inverse);
    store_floats(out + i, n - i, _mm256_mul_ps(v, load_first(weight + i, n - i)));
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
  __m256 lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int i = 0; i < n; i += 8) lanes[i / 8 % 2] = _mm256_add_ps(lanes[i / 8 % 2], load_first(x + i, n - i));
  const __m256 mean = _mm256_set1_ps(sum16(lanes[0], lanes[1]) / static_cast<float>(n));
  lanes[0] = lanes[1] = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) {
    const __m256 v =
        _mm256_and_ps(_mm256_castsi256_ps(first_lanes(n - i)), _mm256_sub_ps(load_first(x + i, n - i), mean));
    lanes[i / 8 % 2] = _mm256_fmadd_ps(v, v, lanes[i / 8 % 2]);
  }
  const __m256 inverse =
      _mm256_set1_ps(1.0F / __builtin_sqrtf(sum16(lanes[0], lanes[1]) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_sub_ps(load_first(x + i, n - i), mean), inverse);
    store_floats(out + i, n - i,
                 _mm256_add_ps(_mm256_mul_ps(v, load_first(weight + i, n - i)), load_first(bias + i, n - i)));
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
  for (int i = 0; i < n; i += 8)
    store_floats(x + i, n - i, _mm256_add_ps(load_first(x + i, n - i), load_first(y + i, n - i)));
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
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  for (int i = 0; i < n; i += 8) {
    const __m256 w = load_first(weights + i, n - i);
    const int at = i / 8 % 2 * 2;
    sums[at] = _mm256_add_pd(sums[at], _mm256_cvtps_pd(_mm256_castps256_ps128(w)));
    sums[at + 1] = _mm256_add_pd(sums[at + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(w, 1)));
  }
  const __m256d s4 = _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]), _mm256_add_pd(sums[1], sums[3]));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

void add_weights(const float* weights, int n, double factor, double* mass) {
  const __m256d f = _mm256_set1_pd(factor);
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m256d w = _mm256_cvtps_pd(_mm_loadu_ps(weights + i));
    _mm256_storeu_pd(mass + i, _mm256_add_pd(_mm256_loadu_pd(mass + i), _mm256_mul_pd(f, w)));
  }
  for (; i < n; ++i) mass[i] += factor * static_cast<double>(weights[i]);
}

}  // namespace kvasir::avx2

// Norms, activations and other elementwise operations on rows and pages. Written once, over vectors of 16 lanes
// (avx512/simd.h); compiled for each instruction set by the file that includes it.
#pragma once

#include "backend/cpu/kernels/pages/page_layout.h"
#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

template <class Simd>
struct Elementwise {
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;

  static void set(KernelTable& table) {
    table.quantize_q8 = quantize_q8;
    table.rms_norm = rms_norm;
    table.layer_norm = layer_norm;
    table.activate = activate;
    table.add = add;
    table.store_kv = store_kv;
    table.rotate_keys = rotate_keys;
    table.move_slots = move_slots;
    table.sum_weights = sum_weights;
    table.add_weights = add_weights;
  }

 private:
  // Numbers [first, first + 16) of an array, or those before its end: lanes beyond are read as zero and not written.
  struct Whole {
    int first;
    static Floats where(Floats x) { return x; }
    Floats of(const float* p) const { return Simd::load(p + first); }
    void set(float* p, Floats x) const { Simd::store(p + first, x); }
  };
  struct Part {
    int first;
    typename Simd::Mask mask;
    Floats where(Floats x) const { return Simd::where(mask, x); }
    Floats of(const float* p) const { return Simd::load(mask, p + first); }
    void set(float* p, Floats x) const { Simd::store(mask, p + first, x); }
  };
  // Calls run with the places of n numbers, in order.
  template <class Run>
  [[gnu::always_inline]] static void for_each(int n, const Run& run) {
    int first = 0;
    for (; first + 16 <= n; first += 16) run(Whole{first});
    if (first < n) run(Part{first, Simd::first(n - first)});
  }

  static void quantize_q8(const float* x, int inputs, const MutableQ8Rows& place) {
    for (int b = 0; b < inputs / kQ8Block; ++b, x += kQ8Block) {
      const MutableQ8Rows to = place.at(static_cast<std::size_t>(b) * kRowGroup);
      const Floats first = Simd::load(x);
      const Floats second = Simd::load(x + 16);
      const Floats most = Simd::max(Simd::abs(first), Simd::abs(second));
      const float largest = Simd::greatest(most);
      const bool finite = Simd::finite(first) && Simd::finite(second);
      const Floats inverse = Simd::all(largest >= kQ8Smallest ? 127.0F / largest : 0.0F);
      const Ints q0 = finite ? Simd::rounded(first * inverse) : Simd::no_ints();
      const Ints q1 = finite ? Simd::rounded(second * inverse) : Simd::no_ints();
      Simd::store_bytes(to.quants, q0, q1);
      const int sums[2] = {Simd::sum_ints(q0), Simd::sum_ints(q1)};
      *to.scale = finite ? largest / 127.0F : __builtin_nanf("");
      *to.scaled_sum = *to.scale * static_cast<float>(sums[0] + sums[1]);
      *to.sum = -128 * (sums[0] + sums[1]);
      to.half_sum[0] = -128 * sums[0];
      to.half_sum[1] = -128 * sums[1];
    }
  }

  static float inverse_root(float sum, int n, float eps) {
    return 1.0F / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  }

  static void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    Floats lanes = Simd::zero();
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats v = place.of(x);
          lanes = Simd::fma(v, v, lanes);
        });
    const Floats inverse = Simd::all(inverse_root(Simd::sum(lanes), n, eps));
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats normed = place.of(x) * inverse;
          place.set(out, weight != nullptr ? normed * place.of(weight) : normed);
        });
  }

  static void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
    Floats lanes = Simd::zero();
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) { lanes += place.of(x); });
    const Floats mean = Simd::all(Simd::sum(lanes) / static_cast<float>(n));
    lanes = Simd::zero();
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats v = place.where(place.of(x) - mean);
          lanes = Simd::fma(v, v, lanes);
        });
    const Floats inverse = Simd::all(inverse_root(Simd::sum(lanes), n, eps));
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats v = (place.of(x) - mean) * inverse;
          if (bias != nullptr) {
            place.set(out, v * place.of(weight) + place.of(bias));
          } else {
            place.set(out, v * place.of(weight));
          }
        });
  }

  [[gnu::always_inline]] static Floats silu(Floats x) { return x / (Simd::all(1.0F) + Simd::exp(Simd::zero() - x)); }

  [[gnu::always_inline]] static Floats sigmoid(Floats x) {
    return Simd::all(1.0F) / (Simd::all(1.0F) + Simd::exp(Simd::zero() - x));
  }

  // erfc(z) = p(t) exp(-z^2), t = 1 / (1 + 0.3275911 z), for z >= 0: Abramowitz & Stegun 7.1.26, off by 1.5e-7 at most.
  [[gnu::always_inline]] static Floats gelu(Floats x) {
    const Floats one = Simd::all(1.0F);
    const Floats z = Simd::abs(x) * Simd::all(0.70710678F);
    const Floats t = one / Simd::fma(z, Simd::all(0.3275911F), one);
    Floats p = Simd::all(1.061405429F);
    p = Simd::fma(p, t, Simd::all(-1.453152027F));
    p = Simd::fma(p, t, Simd::all(1.421413741F));
    p = Simd::fma(p, t, Simd::all(-0.284496736F));
    p = Simd::fma(p, t, Simd::all(0.254829592F));
    const Floats square = z * (Simd::zero() - z);
    const Floats tail_area = p * t * Simd::exp(square);
    const Floats area = Simd::where(Simd::less(x, Simd::zero()), tail_area, Simd::all(2.0F) - tail_area);
    return x * Simd::all(0.5F) * area;
  }

  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
  [[gnu::always_inline]] static Floats gelu_tanh(Floats x) {
    const Floats factor = Simd::fma(x * x, Simd::all(-0.0713548163F), Simd::all(-1.59576912F));
    return x / (Simd::all(1.0F) + Simd::exp(x * factor));
  }

  template <Floats kFunction(Floats)>
  static void activate_by(const float* x, const float* factor, int n, float* out) {
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats y = kFunction(place.of(x));
          place.set(out, factor != nullptr ? y * place.of(factor) : y);
        });
  }

  static void activate(ActivationFunction function, const float* x, const float* factor, int n, float* out) {
    switch (function) {
      case ActivationFunction::kSilu: return activate_by<silu>(x, factor, n, out);
      case ActivationFunction::kGelu: return activate_by<gelu>(x, factor, n, out);
      case ActivationFunction::kGeluTanh: return activate_by<gelu_tanh>(x, factor, n, out);
      case ActivationFunction::kSigmoid: return activate_by<sigmoid>(x, factor, n, out);
      case ActivationFunction::kClampedSwiglu: return clamped_swiglu(x, factor, n, out);
    }
  }

  static void clamped_swiglu(const float* x, const float* factor, int n, float* out) {
    const auto least = [](Floats a, Floats b) __attribute__((always_inline)) {
      return Simd::where(Simd::less(b, a), b, a);
    };
    const auto most = [](Floats a, Floats b) __attribute__((always_inline)) {
      return Simd::where(Simd::less(a, b), b, a);
    };
    const Floats one = Simd::all(1.0F), limit = Simd::all(kSwigluLimit);
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) {
          const Floats gate = least(place.of(x), limit);
          const Floats up = most(least(place.of(factor), limit), Simd::zero() - limit);
          place.set(out, gate / (one + Simd::exp(gate * Simd::all(-kSwigluSlope))) * (up + one));
        });
  }

  static void add(float* x, const float* y, int n) {
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) { place.set(x, place.of(x) + place.of(y)); });
  }

  static void store_kv(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value) {
    if (shape.key != shape.value || shape.latent || !has_floats(shape.key))
      return generic_kernels().store_kv(shape, page, slot, key, value);
    with_element_type(shape.key, [&]<KvType kType>() {
      constexpr std::size_t kSize = kElementBytes<kType>;
      std::byte* values = page + values_offset(shape) + static_cast<std::size_t>(slot) * value_bytes(shape);
      for (int d = 0; d < shape.head_dim; d += 16) {
        const int count = shape.head_dim - d < 16 ? shape.head_dim - d : 16;
        const auto lanes = Simd::first(count);
        Simd::template store_first_elements<kType>(values + static_cast<std::size_t>(d) * kSize, count,
                                                   Simd::load(lanes, value + d));
        alignas(64) std::byte converted[64];
        Simd::template store_first_elements<kType>(converted, 16, Simd::load(lanes, key + d));
        for (int i = 0; i < count; ++i)
          __builtin_memcpy(page + static_cast<std::size_t>((d + i) * shape.slots + slot) * kSize,
                           converted + static_cast<std::size_t>(i) * kSize, kSize);
      }
    });
  }

  // Two rows of keys, rotated.
  struct Rotated {
    Floats a, b;

    template <KvType kType>
    [[gnu::always_inline]] static Rotated of(const std::byte* row_a, const std::byte* row_b, float cosine, float sine) {
      const Floats c = Simd::all(cosine);
      const Floats s = Simd::all(sine);
      const Floats a = Simd::template load_elements<kType>(row_a);
      const Floats b = Simd::template load_elements<kType>(row_b);
      return {a * c - b * s, a * s + b * c};
    }
  };

  static void rotate_keys(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                          const float* sine) {
    if (!has_floats(shape.key)) return generic_kernels().rotate_keys(shape, page, slots, rotary, cosine, sine);
    with_element_type(shape.key, [&]<KvType kType>() {
      constexpr std::size_t kSize = kElementBytes<kType>;
      const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
      for (int i = 0; i < rotary / 2; ++i)
        for (int slot = 0; slot < shape.slots; slot += 16) {
          const auto live = static_cast<std::uint16_t>(slots >> slot);
          if (live == 0) continue;
          std::byte* row = page + static_cast<std::size_t>(2 * i) * row_bytes + static_cast<std::size_t>(slot) * kSize;
          const Rotated rows = Rotated::template of<kType>(row, row + row_bytes, cosine[i], sine[i]);
          Simd::template store_elements<kType>(live, row, rows.a);
          Simd::template store_elements<kType>(live, row + row_bytes, rows.b);
        }
    });
  }

  // Reads 16 slots before it writes any, so the pages may be the same if slots move towards the front.
  static void move_slots(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to,
                         int to_slot, int rotary, const float* cosine, const float* sine) {
    if (!has_floats(shape.key))
      return generic_kernels().move_slots(shape, from, from_slots, to, to_slot, rotary, cosine, sine);
    const std::size_t bytes = value_bytes(shape);
    with_element_type(shape.key, [&]<KvType kType>() {
      constexpr std::size_t kSize = kElementBytes<kType>;
      const std::size_t row_bytes = static_cast<std::size_t>(shape.slots) * kSize;
      const int rotated = cosine != nullptr ? rotary : 0;
      int at = to_slot;
      for (int slot = 0; slot < shape.slots; slot += 16) {
        const auto live = static_cast<std::uint16_t>(from_slots >> slot);
        if (live == 0) continue;
        const std::byte* source = from + static_cast<std::size_t>(slot) * kSize;
        std::byte* target = to + static_cast<std::size_t>(at) * kSize;
        for (int i = 0; i < rotated / 2; ++i, source += 2 * row_bytes, target += 2 * row_bytes) {
          const Rotated rows = Rotated::template of<kType>(source, source + row_bytes, cosine[i], sine[i]);
          Simd::template pack_elements<kType>(live, target, rows.a);
          Simd::template pack_elements<kType>(live, target + row_bytes, rows.b);
        }
        for (int d = rotated; d < shape.head_dim; ++d, source += row_bytes, target += row_bytes)
          Simd::template pack_elements<kType>(live, target, Simd::template load_elements<kType>(source));
        at += __builtin_popcount(live);
      }
    });
    std::byte* target = to + values_offset(shape) + static_cast<std::size_t>(to_slot) * bytes;
    for (SlotMask left = from_slots; left != 0; left &= left - 1, target += bytes)
      __builtin_memmove(target, from + values_offset(shape) + static_cast<std::size_t>(__builtin_ctzll(left)) * bytes,
                        bytes);
  }

  static double sum_weights(const float* weights, int n) {
    typename Simd::Doubles sums;
    for_each(
        n, [&](const auto& place) __attribute__((always_inline)) { sums.add(place.of(weights)); });
    return sums.sum();
  }

  static void add_weights(const float* weights, int n, double factor, double* mass) {
    for (int i = 0; i < n; ++i) mass[i] += factor * static_cast<double>(weights[i]);
  }
};

}  // namespace
}  // namespace kvasir

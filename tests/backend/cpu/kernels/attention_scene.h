// Pages full of random keys and values, queries and masks, and what attention over them must be.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/kernels/fenced.h"
#include "backend/cpu/kernels/kernel_test.h"

namespace kvasir::test {

inline constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBF16};
// Those of pages that are not encoded.
inline constexpr KvType kPlainTypes[] = {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kI16};

inline float round_to(KvType type, float value) {
  switch (type) {
    case KvType::kF32: return value;
    case KvType::kF16: return f16_to_f32(f32_to_f16(value));
    case KvType::kBF16: return bf16_to_f32(f32_to_bf16(value));
    default: return std::nanf("");
  }
}

// A token's key or value as a page holds it.
inline std::vector<float> stored(KvType type, const std::vector<float>& x) {
  std::vector<float> out;
  float most = 0;
  for (const float value : x) most = std::isnan(value) ? value : std::max(most, std::fabs(value));
  for (const float value : x) {
    if (type != KvType::kI16) {
      out.push_back(round_to(type, value));
    } else if (!std::isfinite(most)) {
      out.push_back(std::nanf(""));
    } else {
      out.push_back(most < 1e-33F ? 0.0F : most * (1.0F / 4095.0F) * std::nearbyint(value * (4095.0F / most)));
    }
  }
  return out;
}

// The state of attention of some queries, fenced.
struct State {
  State(int queries, int head_dim)
      : count(static_cast<std::size_t>(queries)),
        dim(static_cast<std::size_t>(head_dim)),
        maximum(count),
        sum(count),
        weighted(count * dim) {
    std::fill_n(maximum.data(), count, -std::numeric_limits<float>::infinity());
    std::fill_n(sum.data(), count, 0.0F);
    std::fill_n(weighted.data(), count * dim, 0.0F);
  }
  AttentionState view() { return {maximum.data(), sum.data(), weighted.data()}; }
  bool intact() const { return maximum.intact() && sum.intact() && weighted.intact(); }
  // Queries [first, first + other.count) are the bits of `other`.
  bool holds(const State& other, std::size_t first) const {
    return same_bits(maximum.data() + first, other.maximum.data(), other.count) &&
           same_bits(sum.data() + first, other.sum.data(), other.count) &&
           same_bits(weighted.data() + first * dim, other.weighted.data(), other.count * dim);
  }

  std::size_t count;
  std::size_t dim;
  Fenced<float> maximum;
  Fenced<float> sum;
  Fenced<float> weighted;
};

// What attend leaves of some queries for observe_weights, fenced. Strides are wider than what lies between.
struct Exponentials {
  Exponentials(int queries, int entry_count, int slot_count)
      : entries(static_cast<std::size_t>(entry_count)),
        slots(static_cast<std::size_t>(slot_count)),
        weight_stride(entries * slots + 3),
        maximum_stride(entries + 2),
        weights(static_cast<std::size_t>(queries - 1) * weight_stride + entries * slots),
        maxima(static_cast<std::size_t>(queries - 1) * maximum_stride + entries) {}
  float* of(std::size_t query) { return weights.data() + query * weight_stride; }
  float* maxima_of(std::size_t query) { return maxima.data() + query * maximum_stride; }

  std::size_t entries;
  std::size_t slots;
  std::size_t weight_stride;
  std::size_t maximum_stride;
  Fenced<float> weights;
  Fenced<float> maxima;
};

// Pages full of random keys and values, queries, and masks.
struct Scene {
  PageFormat shape;
  int rows;
  int group;
  int entries;
  std::vector<float> q;                    // [rows][group][head_dim]
  std::vector<std::vector<float>> keys;    // [entries][slots][head_dim], as stored
  std::vector<std::vector<float>> values;  // likewise
  std::vector<std::unique_ptr<Fenced<std::byte>>> pages;
  std::vector<SlotMask> masks;                  // [rows][entries]
  double rounding;                              // of a product, what the table loses beyond a float's rounding
  float softcap = 0;                            // AttentionPartial::softcap
  bool gathered = false;                        // attend() gives the kernel rows in place of pages
  std::uint32_t joined = 0;                     // AttentionPartial::joined, of all entries
  std::vector<std::vector<float>> biases = {};  // [entries][slots], or empty for an entry; empty: none

  Scene(const KernelTable& table, PageFormat page_shape, int row_count, int group_size, int entry_count, float q_range,
        Random& random)
      : shape(page_shape),
        rows(row_count),
        group(group_size),
        entries(entry_count),
        rounding(shape.key == shape.value && shape.key != KvType::kF32 ? double{table.attention_rounding} : 0) {
    q = random.floats(static_cast<std::size_t>(rows * group * shape.head_dim), q_range);
    for (int e = 0; e < entries; ++e) {
      pages.push_back(std::make_unique<Fenced<std::byte>>(shape.bytes(), std::size_t{64}));
      keys.emplace_back(static_cast<std::size_t>(shape.slots * shape.head_dim));
      values.emplace_back(keys.back().size());
      if (e > 0 && e % (128 / shape.slots) != 0 && random.below(4) != 0) joined |= 1U << e;
      for (int s = 0; s < shape.slots; ++s)
        store(table, e, s, random.floats(static_cast<std::size_t>(shape.head_dim)),
              random.floats(static_cast<std::size_t>(shape.head_dim), 2.0F));
    }
    masks.resize(static_cast<std::size_t>(rows * entries));
    for (SlotMask& mask : masks) {
      const SlotMask all = slot_range(0, shape.slots);
      const int kind = random.below(6);
      mask = kind == 0   ? 0
             : kind == 1 ? all
             : kind == 2 ? SlotMask{1} << random.below(shape.slots)
             : kind == 3 ? slot_range(0, random.below(shape.slots + 1))
                         : random.bits() & random.bits() & all;
    }
  }

  void store(const KernelTable& table, int entry, int slot, const std::vector<float>& key,
             const std::vector<float>& value) {
    table.store_kv(shape, pages[static_cast<std::size_t>(entry)]->data(), slot, key.data(), value.data());
    const std::vector<float> as_key = stored(shape.key, key), as_value = stored(shape.value, value);
    std::copy(as_key.begin(), as_key.end(), keys[static_cast<std::size_t>(entry)].begin() + slot * shape.head_dim);
    std::copy(as_value.begin(), as_value.end(),
              values[static_cast<std::size_t>(entry)].begin() + slot * shape.head_dim);
  }
  SlotMask& mask(int row, int entry) { return masks[static_cast<std::size_t>(row * entries + entry)]; }

  // Adds entries [begin, end) to the state of rows [first, first + count).
  void attend(const KernelTable& table, int first, int count, int begin, int end, State& state,
              Exponentials* exponentials = nullptr) const {
    // Strides wider than the rows, so that a kernel which ignores them fails; NaN between.
    const auto width = static_cast<std::size_t>(group * shape.head_dim);
    const std::size_t q_stride = width + 5;
    const std::size_t mask_stride = static_cast<std::size_t>(end - begin) + 2;
    Fenced<float> queries(static_cast<std::size_t>(count - 1) * q_stride + width);
    Fenced<SlotMask> live(static_cast<std::size_t>(count - 1) * mask_stride + static_cast<std::size_t>(end - begin));
    std::fill_n(queries.data(), queries.size(), std::nanf(""));
    for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
      const std::size_t row = static_cast<std::size_t>(first) + r;
      std::copy_n(q.data() + row * width, width, queries.data() + r * q_stride);
      std::copy_n(masks.data() + row * static_cast<std::size_t>(entries) + static_cast<std::size_t>(begin), end - begin,
                  live.data() + r * mask_stride);
    }
    std::vector<const std::byte*> chosen;
    for (int e = begin; e < end; ++e) chosen.push_back(pages[static_cast<std::size_t>(e)]->data());
    const Fenced<const std::byte*> page_list(chosen);
    const Fenced<const PageFormat*> formats(std::vector<const PageFormat*>(chosen.size(), &shape));
    AttentionPartial partial;
    partial.head_dim = shape.head_dim;
    partial.slots = shape.slots;
    partial.formats = formats.data();
    partial.rows = count;
    partial.group = group;
    partial.q = queries.data();
    partial.q_row_stride = q_stride;
    partial.entries = end - begin;
    partial.joined = joined >> begin & ~1U;
    partial.pages = page_list.data();
    partial.masks = live.data();
    partial.mask_row_stride = mask_stride;
    partial.softcap = softcap;
    std::vector<std::unique_ptr<Fenced<float>>> fenced;
    std::vector<const float*> of_entries;
    for (int e = begin; e < end && !biases.empty(); ++e) {
      const std::vector<float>& own = biases[static_cast<std::size_t>(e)];
      if (!own.empty()) fenced.push_back(std::make_unique<Fenced<float>>(own));
      of_entries.push_back(own.empty() ? nullptr : fenced.back()->data());
    }
    if (!biases.empty()) partial.biases = of_entries.data();
    if (exponentials != nullptr) {
      partial.weights = exponentials->of(0) + static_cast<std::size_t>(begin * shape.slots);
      partial.weight_stride = exponentials->weight_stride;
      partial.weight_maxima = exponentials->maxima_of(0) + begin;
      partial.weight_maximum_stride = exponentials->maximum_stride;
    }
    if (gathered) {
      attend_gathered(table, partial, begin, state);
    } else {
      table.attend(partial, state.view());
    }
    EXPECT_TRUE(state.intact());
  }

  // As table.attend, of rows that are taken out of the pages from `begin` on, all of what some row sees and some more.
  void attend_gathered(const KernelTable& table, AttentionPartial& partial, int begin, State& state) const {
    const std::size_t key = kv_type_bytes(shape.key), value = kv_type_bytes(shape.value);
    const auto dims = static_cast<std::size_t>(shape.head_dim);
    const auto slots = static_cast<std::size_t>(shape.slots);
    std::vector<std::unique_ptr<Fenced<std::byte>>> rows;
    std::vector<std::vector<const std::byte*>> places(static_cast<std::size_t>(partial.entries));
    std::vector<GatheredEntry> entries_apart;
    for (int e = 0; e < partial.entries; ++e) {
      const std::byte* page = pages[static_cast<std::size_t>(begin + e)]->data();
      SlotMask held = SlotMask{1} << (e % shape.slots);
      for (int r = 0; r < partial.rows; ++r)
        held |= partial.masks[static_cast<std::size_t>(r) * partial.mask_row_stride + static_cast<std::size_t>(e)];
      auto& of_entry = places[static_cast<std::size_t>(e)];
      for (std::size_t s = 0; s < slots; ++s) {
        if ((held >> s & 1) == 0) continue;
        auto row = std::make_unique<Fenced<std::byte>>((key + value) * dims, std::size_t{2});
        for (std::size_t d = 0; d < dims; ++d) std::copy_n(page + (d * slots + s) * key, key, row->data() + d * key);
        std::copy_n(page + dims * slots * key + s * dims * value, dims * value, row->data() + dims * key);
        of_entry.push_back(row->data());
        rows.push_back(std::move(row));
      }
      entries_apart.push_back({held, of_entry.data()});
    }
    partial.pages = nullptr;
    table.attend_gathered(partial, entries_apart.data(), state.view());
  }

  State attend_all(const KernelTable& table, int first, int count) const {
    State state(count * group, shape.head_dim);
    attend(table, first, count, 0, entries, state);
    return state;
  }

  // The softmax weights of a query over the live slots of entries [begin, end), directly and in double. Returns how far
  // rounding may take a score.
  double softmax_weights(int query, int begin, int end, std::vector<double>& weights,
                         std::vector<const float*>* seen = nullptr) const {
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    const float* a = q.data() + static_cast<std::size_t>(query) * dim;
    weights.clear();
    double size = 0;
    float largest_query = 0;
    for (std::size_t d = 0; d < dim; ++d) largest_query = std::max(largest_query, std::fabs(a[d]));
    double steps = 0;  // how far rounding a query to integers may take a score
    for (int e = begin; e < end; ++e) {
      const SlotMask live = masks[static_cast<std::size_t>(query / group * entries + e)];
      for (int s = 0; s < shape.slots; ++s) {
        if ((live >> s & 1) == 0) continue;
        const auto at = static_cast<std::size_t>(s) * dim;
        double magnitude = 0, of_key = 0;
        weights.push_back(0);
        for (std::size_t d = 0; d < dim; ++d) {
          const double part = static_cast<double>(a[d]) * double{keys[static_cast<std::size_t>(e)][at + d]};
          of_key += std::fabs(double{keys[static_cast<std::size_t>(e)][at + d]});
          weights.back() += part;
          magnitude += std::fabs(part);
        }
        size = std::max(size, magnitude);
        if (shape.key == KvType::kI16) steps = std::max(steps, of_key * double{largest_query} / (2 * 8191));
        if (softcap != 0) weights.back() = softcap * std::tanh(weights.back() / double{softcap});
        if (!biases.empty() && !biases[static_cast<std::size_t>(e)].empty())
          weights.back() += double{biases[static_cast<std::size_t>(e)][static_cast<std::size_t>(s)]};
        if (seen != nullptr) seen->push_back(values[static_cast<std::size_t>(e)].data() + at);
      }
    }
    if (weights.empty()) return 0;
    const double highest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - highest);
    for (double& weight : weights) weight /= sum;
    return ((static_cast<double>(dim) + 8) * kEpsilon + rounding) * size + 8 * kEpsilon * double{softcap} + steps;
  }

  // Returns how far rounding the weights of each step to integers may take a sum of values of at most 1: half a step
  // for each token, of the largest weight.
  double weight_steps(int query, int begin, int end, const std::vector<double>& weights) const {
    double error = 0, largest = 0;
    int count = 0;
    std::size_t next = 0;
    for (int e = begin; e < end; ++e) {
      if ((joined >> e & 1) == 0) largest = count = 0;
      const SlotMask live = masks[static_cast<std::size_t>(query / group * entries + e)];
      for (int left = std::popcount(live); left > 0; --left, ++count) largest = std::max(largest, weights[next++]);
      if (e + 1 == end || (joined >> (e + 1) & 1) == 0) error += largest * count / (2 * 4095) * 1.01;
    }
    return error;
  }

  // Attention over entries [begin, end), in double. Returns how far rounding may take the result.
  double softmax(int query, int begin, int end, std::vector<double>& out) const {
    std::vector<double> weights;
    std::vector<const float*> seen;
    const double score_error = softmax_weights(query, begin, end, weights, &seen);
    out.assign(static_cast<std::size_t>(shape.head_dim), 0.0);
    double largest_value = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      for (std::size_t d = 0; d < out.size(); ++d) {
        out[d] += weights[i] * double{seen[i][d]};
        largest_value = std::max(largest_value, std::fabs(double{seen[i][d]}));
      }
    const double of_weights = shape.value == KvType::kI16 ? weight_steps(query, begin, end, weights) : 0;
    return (2 * score_error + (static_cast<double>(weights.size()) + 32) * kEpsilon + rounding + of_weights) *
           largest_value;
  }

  void expect_softmax(const KernelTable& table, State& state, int begin, int end) const {
    Fenced<float> out(state.weighted.size());
    table.finish(state.view(), static_cast<int>(state.count), shape.head_dim, out.data());
    ASSERT_TRUE(out.intact());
    std::vector<double> wanted;
    for (std::size_t query = 0; query < state.count; ++query) {
      const double tolerance = softmax(static_cast<int>(query), begin, end, wanted);
      for (std::size_t d = 0; d < state.dim; ++d)
        ASSERT_NEAR(out[query * state.dim + d], wanted[d], tolerance) << "query " << query << " dimension " << d;
    }
  }

  // Gives some entries biases of -3 to 3.
  void draw_biases(Random& random) {
    biases.resize(static_cast<std::size_t>(entries));
    for (auto& own : biases)
      if (random.below(3) != 0) own = random.floats(static_cast<std::size_t>(shape.slots), 3.0F);
  }

  std::string describe() const {
    return codec_name(shape) + " dim " + std::to_string(shape.head_dim) + " slots " + std::to_string(shape.slots) +
           " group " + std::to_string(group) + " rows " + std::to_string(rows);
  }
};

}  // namespace kvasir::test

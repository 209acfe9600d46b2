// The specification of attention, in plain C++; of encoded pages: integer_products.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/generic.h"
#include "backend/cpu/kernels/integer_products.h"
#include "backend/cpu/kernels/pages/decode_page.h"
#include "base/aligned_buffer.h"

namespace kvasir::generic {
namespace {

// Numbers as 16-bit integers times a unit.
struct Integers {
  float unit = 0;
  float inverse = 0;

  // `most`: the largest magnitude; infinite or NaN if a number is. `greatest`: the integer that it becomes.
  explicit Integers(float most, float greatest = kMostInteger)
      : unit(std::isfinite(most) ? most * (1.0F / greatest) : std::numeric_limits<float>::quiet_NaN()),
        inverse(std::isfinite(most) && most >= kLeastInteger ? greatest / most : 0.0F) {}

  std::int32_t operator()(float x) const {
    const float steps = x * inverse;
    return std::isfinite(steps) ? static_cast<std::int32_t>(std::nearbyint(steps)) : 0;
  }
};

float greater(float most, float x) {
  if (std::isnan(most) || std::isnan(x)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(most, std::fabs(x));
}

// One side of a page, ready to be read. Rows of keys are dimensions, rows of values slots.
struct OpenSide {
  bool encoded = false;
  EncodedSide side;
  std::int16_t code[kMaxCodes];
  float plain[kMaxCodes];  // if not encoded: [rows][count]

  int code_of(int row, int i) const { return code[code_index(side, row, i)]; }
  float scale(int group, int row) const { return half_number(side.scale, group * side.rows + row); }
  float least(int group, int row) const {
    return side.least != nullptr ? half_number(side.least, group * side.rows + row) : 0.0F;
  }

  // Calls add(row, i, element - least) for each outlier.
  template <class Add>
  void each_outlier(const Add& add) const {
    for (int o = 0; o < side.outliers; ++o) {
      const std::byte* at = side.places + static_cast<std::size_t>(o) * kOutlierBytes;
      std::uint16_t place;
      std::memcpy(&place, at, sizeof place);
      if (place == kNoPlace) continue;
      const int row = place / side.count;
      const int i = place % side.count;
      add(row, i, half_at(at + 2) - least(i / kCodecGroup, row));
    }
  }
};

void open(const EncodedSide& side, OpenSide& open) {
  open.encoded = is_encoded(side.type);
  if (!open.encoded) return load_side(side.type, side.data, side.rows * side.count, open.plain);
  open.side = side;
  open_codes(side, open.code);
}

// q8: scales are those of slots, for each group of dimensions.
void score_slots_q8(const OpenSide& keys, const float* q, float* score) {
  const int dims = keys.side.rows;
  const int slots = keys.side.count;
  float most = 0;
  for (int d = 0; d < dims; ++d) most = greater(most, q[d]);
  const Integers integers(most);
  for (int s = 0; s < slots; ++s) {
    float sum = 0;
    for (int group = 0; group < code_groups(dims); ++group) {
      std::int32_t products = 0;
      for (int d = group * kCodecGroup; d < group * kCodecGroup + group_size(dims, group); ++d)
        products += integers(q[d]) * keys.code_of(d, s);
      sum = std::fma(half_number(keys.side.scale, group * slots + s), static_cast<float>(products), sum);
    }
    score[s] = integers.unit * sum;
  }
}

// Others: scales are those of dimensions, for each group of slots.
void score_slots(const OpenSide& keys, const float* q, float* score) {
  const int dims = keys.side.rows;
  const int slots = keys.side.count;
  for (int group = 0; group < code_groups(slots); ++group) {
    float scaled[kMaxHeadDim];
    float most = 0;
    float least = 0;
    for (int d = 0; d < dims; ++d) {
      scaled[d] = q[d] * keys.scale(group, d);
      most = greater(most, scaled[d]);
      least += q[d] * keys.least(group, d);
    }
    const Integers integers(most);
    for (int s = group * kCodecGroup; s < group * kCodecGroup + group_size(slots, group); ++s) {
      std::int32_t products = 0;
      for (int d = 0; d < dims; ++d) products += integers(scaled[d]) * keys.code_of(d, s);
      score[s] = std::fma(integers.unit, static_cast<float>(products), least);
    }
  }
  keys.each_outlier([&](int d, int s, float beyond) { score[s] = std::fma(q[d], beyond, score[s]); });
}

void scores(const OpenSide& keys, int dims, int slots, const float* q, float* score) {
  if (keys.encoded) {
    if (keys.side.type == KvType::kQ8) return score_slots_q8(keys, q, score);
    return score_slots(keys, q, score);
  }
  std::fill_n(score, slots, 0.0F);
  for (int d = 0; d < dims; ++d)
    for (int s = 0; s < slots; ++s) score[s] += q[d] * keys.plain[d * slots + s];
}

// weighted += sum over live slots of weight * value.
void add_encoded_values(const OpenSide& values, SlotMask live, const float* weight, float* weighted) {
  const int slots = values.side.rows;
  const int dims = values.side.count;
  const auto is_live = [&](int s) { return (live >> s & 1) != 0; };
  float most = 0;
  for (int group = 0; group < code_groups(dims); ++group)
    for (int s = 0; s < slots; ++s)
      if (is_live(s)) most = greater(most, weight[s] * values.scale(group, s));
  const Integers integers(most);
  for (int group = 0; group < code_groups(dims); ++group) {
    float least = 0;
    std::int32_t n[64] = {};
    for (int s = 0; s < slots; ++s) {
      if (!is_live(s)) continue;
      n[s] = integers(weight[s] * values.scale(group, s));
      least += weight[s] * values.least(group, s);
    }
    for (int d = group * kCodecGroup; d < group * kCodecGroup + group_size(dims, group); ++d) {
      std::int32_t products = 0;
      for (int s = 0; s < slots; ++s) products += n[s] * values.code_of(s, d);
      weighted[d] += std::fma(integers.unit, static_cast<float>(products), least);
    }
  }
  values.each_outlier([&](int s, int d, float beyond) {
    if (is_live(s)) weighted[d] = std::fma(weight[s], beyond, weighted[d]);
  });
}

void add_plain_values(const OpenSide& values, int dims, int slots, SlotMask live, const float* weight,
                      float* weighted) {
  for (int s = 0; s < slots; ++s)
    if ((live >> s & 1) != 0)
      for (int d = 0; d < dims; ++d) weighted[d] += weight[s] * values.plain[s * dims + d];
}

// One query over a step of a run in i16: entries [first, end).
struct WordStep {
  const AttentionPartial& run;
  int query;
  int first;
  int end;

  SlotMask live(int e) const {
    return run.masks[static_cast<std::size_t>(query / run.group) * run.mask_row_stride + static_cast<std::size_t>(e)];
  }
  // Calls each(entry, slot, its number in the step) for all slots that the query sees.
  template <class Each>
  void each_slot(const Each& each) const {
    for (int e = first; e < end; ++e)
      for (SlotMask left = live(e); left != 0; left &= left - 1) {
        const int s = std::countr_zero(left);
        each(e, s, (e - first) * run.slots + s);
      }
  }
};

float word_score(const WordSide<const std::byte>& keys, int slot, const float* q, int dims, const Integers& integers) {
  float sum = 0;
  for (int from = 0; from < dims; from += kWordGroup) {
    std::int32_t products = 0;
    for (int d = from; d < std::min(dims, from + kWordGroup); ++d) products += integers(q[d]) * keys.integer(d, slot);
    sum += static_cast<float>(products);
  }
  return integers.unit * keys.scale(slot) * sum;
}

void attend_word_step(const WordStep& step, const Integers& integers, const float* q, const AttentionState& state) {
  const AttentionPartial& run = step.run;
  const int dims = run.head_dim;
  const auto keys = [&](int e) { return word_keys(*run.formats[e], run.pages[e]); };
  const auto values = [&](int e) { return word_values(*run.formats[e], run.pages[e]); };
  float score[kStepSlots];
  float highest = -std::numeric_limits<float>::infinity();
  float most = 0;
  bool sees = false;
  step.each_slot([&](int e, int s, int at) {
    score[at] = word_score(keys(e), s, q, dims, integers);
    if (run.softcap != 0) score[at] = run.softcap * std::tanh(score[at] / run.softcap);
    if (run.biases != nullptr && run.biases[e] != nullptr) score[at] += run.biases[e][s];
    highest = std::isnan(score[at]) ? score[at] : std::max(highest, score[at]);
    most = greater(most, values(e).scale(s));
    sees = true;
  });
  if (!sees) return;
  const Integers of_weights(most, kMostOfWeight);
  std::int32_t n[kStepSlots];
  float total = 0;
  step.each_slot([&](int e, int s, int at) {
    const float p = std::exp(score[at] - highest);
    if (run.weights != nullptr)
      run.weights[static_cast<std::size_t>(step.query) * run.weight_stride +
                  static_cast<std::size_t>(e * run.slots + s)] = p;
    total += p;
    n[at] = of_weights(p * values(e).scale(s));
  });
  if (run.weights != nullptr)
    for (int e = step.first; e < step.end; ++e)
      run.weight_maxima[static_cast<std::size_t>(step.query) * run.weight_maximum_stride +
                        static_cast<std::size_t>(e)] = highest;
  const float before = state.maximum[step.query];
  const float after = before > highest ? before : highest;
  const float keep = std::exp(before - after);
  const float take = std::exp(highest - after);
  float* weighted = state.weighted + static_cast<std::size_t>(step.query) * static_cast<std::size_t>(dims);
  for (int d = 0; d < dims; ++d) {
    std::int32_t products = 0;
    step.each_slot([&](int e, int s, int at) { products += n[at] * values(e).integer(s, d); });
    weighted[d] = std::fma(take * of_weights.unit, static_cast<float>(products), weighted[d] * keep);
  }
  state.sum[step.query] = std::fma(take, total, state.sum[step.query] * keep);
  state.maximum[step.query] = after;
}

void attend_words(const AttentionPartial& run, const AttentionState& state) {
  for (int query = 0; query < run.rows * run.group; ++query) {
    const float* q = run.q + static_cast<std::size_t>(query / run.group) * run.q_row_stride +
                     static_cast<std::size_t>(query % run.group * run.head_dim);
    float most = 0;
    for (int d = 0; d < run.head_dim; ++d) most = greater(most, q[d]);
    const Integers integers(most, kMostOfQuery);
    for (int e = 0; e < run.entries;) {
      int end = e + 1;
      while (end < run.entries && (run.joined >> end & 1) != 0) ++end;
      attend_word_step({run, query, e, end}, integers, q, state);
      e = end;
    }
  }
}

// A run of entries of one format that is not i16.
void attend_elements(const AttentionPartial& partial, const AttentionState& state) {
  const int dim = partial.head_dim;
  const int slots = partial.slots;
  OpenSide keys;
  OpenSide values;
  for (int e = 0; e < partial.entries; ++e) {
    open(encoded_keys(*partial.formats[e], partial.pages[e]), keys);
    open(encoded_values(*partial.formats[e], partial.pages[e]), values);
    for (int query = 0; query < partial.rows * partial.group; ++query) {
      const int row = query / partial.group;
      const SlotMask live = partial.masks[static_cast<std::size_t>(row) * partial.mask_row_stride + e];
      if (live == 0) continue;
      const float* q = partial.q + static_cast<std::size_t>(row) * partial.q_row_stride +
                       static_cast<std::size_t>(query % partial.group * dim);
      float score[64];
      scores(keys, dim, slots, q, score);
      if (partial.softcap != 0)
        for (int s = 0; s < slots; ++s) score[s] = partial.softcap * std::tanh(score[s] / partial.softcap);
      if (partial.biases != nullptr && partial.biases[e] != nullptr)
        for (int s = 0; s < slots; ++s) score[s] += partial.biases[e][s];
      float highest = state.maximum[query];
      for (int s = 0; s < slots; ++s)
        if (live >> s & 1) highest = std::max(highest, score[s]);
      const float keep = std::exp(state.maximum[query] - highest);
      float* weighted = state.weighted + static_cast<std::size_t>(query) * static_cast<std::size_t>(dim);
      float* weights = nullptr;
      if (partial.weights != nullptr) {
        weights = partial.weights + static_cast<std::size_t>(query) * partial.weight_stride + e * slots;
        partial.weight_maxima[static_cast<std::size_t>(query) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(e)] = highest;
      }
      for (int d = 0; d < dim; ++d) weighted[d] *= keep;
      float weight[64];
      float total = 0;
      for (int s = 0; s < slots; ++s) {
        if ((live >> s & 1) == 0) continue;
        weight[s] = std::exp(score[s] - highest);
        if (weights != nullptr) weights[s] = weight[s];
        total += weight[s];
      }
      if (values.encoded) {
        add_encoded_values(values, live, weight, weighted);
      } else {
        add_plain_values(values, dim, slots, live, weight, weighted);
      }
      state.sum[query] = state.sum[query] * keep + total;
      state.maximum[query] = highest;
    }
  }
}

}  // namespace

void attend(const AttentionPartial& partial, const AttentionState& state) {
  attend_runs(partial, [&](const AttentionPartial& run) {
    if ((*run.formats)->key == KvType::kI16) return attend_words(run, state);
    attend_elements(run, state);
  });
}

void attend_placed(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state,
                   void (*attend)(const AttentionPartial& partial, const AttentionState& state)) {
  thread_local AlignedBuffer<std::byte> room;
  for (int e = 0; e < partial.entries; ++e) {
    const PageFormat& format = *partial.formats[e];
    if (room.size() < format.bytes()) std::fill_n(room.ensure(format.bytes()), format.bytes(), std::byte{0});
    int at = 0;
    for (SlotMask left = entries[e].slots; left != 0; left &= left - 1)
      place_row(format, entries[e].rows[at++], std::countr_zero(left), room.data());
    AttentionPartial one = entries_of_partial(partial, e, 1);
    const std::byte* page = room.data();
    one.pages = &page;
    attend(one, state);
  }
}

void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state) {
  attend_placed(partial, entries, state, attend);
}

}  // namespace kvasir::generic

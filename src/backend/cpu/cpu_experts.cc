#include "backend/cpu/cpu_experts.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/pass_tables.h"
#include "base/check.h"

namespace kvasir {
namespace {

constexpr int kLeastWave = 128;  // rows of a wave, where the pass has fewer: several experts at once, for all threads

int wave_rows(int rows) {
  return std::max(rows, kLeastWave);
}

// The most row groups of a wave: each expert's rows begin a group.
int wave_groups(int count, int rows) {
  return wave_rows(rows) / kRowGroup + std::min(count, wave_rows(rows));
}

// Turns outputs of a router into scores, in place.
void score(ExpertScores scores, std::span<float> x) {
  if (scores == ExpertScores::kSoftmaxOfChosen) return;
  if (scores == ExpertScores::kSigmoid) {
    for (float& value : x) value = 1 / (1 + std::exp(-value));
    return;
  }
  const float most = *std::ranges::max_element(x);
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - most);
  for (float& value : x) value /= sum;
}

// The softmax of the weights of a row's experts.
template <class Chosen>
void soften(std::span<Chosen> chosen) {
  float most = chosen.front().weight;
  for (const Chosen& one : chosen) most = std::max(most, one.weight);
  float sum = 0;
  for (Chosen& one : chosen) sum += one.weight = std::exp(one.weight - most);
  for (Chosen& one : chosen) one.weight /= sum;
}

}  // namespace

// Appends each row's experts, in ascending order, to chosen_.
void CpuExperts::choose(const Backend::Experts& experts, const Rows& rows) {
  const ExpertChoice& choice = experts.choice;
  const float* bias = weights_.vector(experts.selection_bias);
  const float* scales = weights_.vector(experts.scales);
  const auto used = static_cast<std::size_t>(choice.used);
  chosen_.resize(static_cast<std::size_t>(rows.count) * used);
  threads_.parallel_for(rows.count, [&](int row) {
    thread_local std::vector<float> scores, ranks;
    const float* router = rows.router + product(row, experts.count);
    scores.assign(router, router + experts.count);
    score(choice.scores, scores);
    ranks = scores;
    for (int e = 0; bias != nullptr && e < experts.count; ++e) ranks[static_cast<std::size_t>(e)] += bias[e];
    const std::span<Assignment> of_row(chosen_.data() + static_cast<std::size_t>(row) * used, used);
    for (Assignment& assignment : of_row) {
      int best = -1;
      for (int e = 0; e < experts.count; ++e) {
        const float rank = ranks[static_cast<std::size_t>(e)];
        const bool taken = std::ranges::any_of(of_row.first(static_cast<std::size_t>(&assignment - of_row.data())),
                                               [e](const Assignment& a) { return a.expert == e; });
        if (!taken && (best < 0 || rank > ranks[static_cast<std::size_t>(best)])) best = e;
      }
      assignment = {best, row, scores[static_cast<std::size_t>(best)]};
    }
    std::ranges::sort(of_row, {}, &Assignment::expert);
    if (choice.scores == ExpertScores::kSoftmaxOfChosen) soften(of_row);
    float sum = 0;
    for (const Assignment& assignment : of_row) sum += assignment.weight;
    for (Assignment& assignment : of_row) {
      assignment.weight = (choice.normalized ? assignment.weight / sum : assignment.weight) * choice.scale;
      if (scales != nullptr) assignment.weight *= scales[assignment.expert];
    }
  });
}

void CpuExperts::run(const Backend::Experts& experts, const Rows& rows) {
  KVASIR_CHECK(experts.choice.used >= 1 && experts.choice.used <= experts.count);
  choose(experts, rows);
  // Counting sort by expert; rows stay in order.
  sorted_.resize(chosen_.size());
  std::vector<int> ends(static_cast<std::size_t>(experts.count) + 1);
  for (const Assignment& assignment : chosen_) ++ends[static_cast<std::size_t>(assignment.expert) + 1];
  for (std::size_t e = 1; e < ends.size(); ++e) ends[e] += ends[e - 1];
  std::vector<int> next(ends.begin(), ends.end() - 1);
  for (const Assignment& assignment : chosen_)
    sorted_[static_cast<std::size_t>(next[static_cast<std::size_t>(assignment.expert)]++)] = assignment;
  if (!experts.adds) std::fill_n(rows.out, product(rows.count, rows.width), 0.0F);
  const int most = wave_rows(rows.count);
  for (int expert = 0; expert < experts.count;) {
    const int first = ends[static_cast<std::size_t>(expert)];
    shares_.clear();
    int group = 0;
    for (; expert < experts.count && ends[static_cast<std::size_t>(expert) + 1] - first <= most; ++expert) {
      const int begin = ends[static_cast<std::size_t>(expert)];
      const int count = ends[static_cast<std::size_t>(expert) + 1] - begin;
      if (count == 0) continue;
      shares_.push_back({expert, begin - first, count, group});
      group += (count + kRowGroup - 1) / kRowGroup;
    }
    if (!shares_.empty()) run_wave(experts, rows, first, first + shares_.back().first + shares_.back().count);
  }
}

// Quantises the wave's rows, which are one behind the other in `x`.
void CpuExperts::quantize(const float* x, int inputs) {
  const Share& last = shares_.back();
  const MutableQ8Rows all = quantized_.ensure(last.group + (last.count + kRowGroup - 1) / kRowGroup, inputs);
  threads_.parallel_for(static_cast<int>(shares_.size()), [&](int index) {
    const Share& share = shares_[static_cast<std::size_t>(index)];
    for (int r = 0; r < share.count; ++r)
      kernels_.quantize_q8(
          x + product(share.first + r, inputs), inputs,
          all.at(group_places(share.group + r / kRowGroup, inputs) + static_cast<std::size_t>(r % kRowGroup)));
  });
}

// Runs jobs_, each of which has the same number of outputs.
void CpuExperts::multiply(int outputs) {
  const int panels = jobs_.front().matrix->panels();
  const int all = panels * static_cast<int>(jobs_.size());
  const int share = std::clamp(all / (threads_.threads() * 8) / 4 * 4, 4, 32);
  const int shares = (panels + share - 1) / share;
  threads_.parallel_for(shares * static_cast<int>(jobs_.size()), [&](int task) {
    const Job& job = jobs_[static_cast<std::size_t>(task / shares)];
    const int begin = task % shares * share;
    kernels_.matmul(*job.matrix, job.rows, begin, std::min(panels, begin + share), job.out,
                    static_cast<std::size_t>(outputs));
  });
  for (const Job& job : jobs_)
    for (int row = 0; job.bias != nullptr && row < job.rows.rows; ++row)
      kernels_.add(job.out + product(row, outputs), job.bias, outputs);
}

void CpuExperts::run_wave(const Backend::Experts& experts, const Rows& rows, int first, int end) {
  const int count = end - first;
  const int hidden = weights_.matrix(experts.up.first).outputs;
  const std::span<const Assignment> wave(sorted_.data() + first, static_cast<std::size_t>(count));
  float* x = rows_.ensure(product(wave_rows(rows.count), rows.width));
  float* gate = gate_.ensure(product(wave_rows(rows.count), hidden));
  float* up = up_.ensure(product(wave_rows(rows.count), hidden));
  float* down = down_.ensure(product(wave_rows(rows.count), rows.width));
  threads_.parallel_for(count, [&](int i) {
    std::copy_n(rows.x + product(wave[static_cast<std::size_t>(i)].row, rows.width), rows.width,
                x + product(i, rows.width));
  });

  // Adds the products of each share's rows with its expert's slice of a matrix.
  const auto add_jobs = [&](const Backend::Experts::Matrix& matrix, const float* from, int inputs, float* to) {
    for (const Share& share : shares_) {
      const auto of_expert = [&](WeightId id) {
        return id == kNoWeight
                   ? id
                   : static_cast<WeightId>(static_cast<std::uint32_t>(id) + static_cast<std::uint32_t>(share.expert));
      };
      const PackedMatrix& weights = weights_.matrix(of_expert(matrix.first));
      KVASIR_CHECK(weights.inputs == inputs);
      jobs_.push_back({&weights,
                       weights_.vector(of_expert(matrix.bias)),
                       {share.count, inputs, from + product(share.first, inputs), quantized_.view(share.group, inputs)},
                       to + product(share.first, weights.outputs)});
    }
  };
  const auto is_encoded = [&](const Backend::Experts::Matrix& matrix) {
    return is_quantized(weights_.matrix(matrix.first).type);
  };
  if (is_encoded(experts.gate) || is_encoded(experts.up)) quantize(x, rows.width);
  jobs_.clear();
  add_jobs(experts.gate, x, rows.width, gate);
  add_jobs(experts.up, x, rows.width, up);
  multiply(hidden);
  threads_.parallel_for(count, [&](int i) {
    float* of_row = up + product(i, hidden);
    kernels_.activate(experts.function, gate + product(i, hidden), of_row, hidden, of_row);
  });
  if (is_encoded(experts.down)) quantize(up, hidden);
  jobs_.clear();
  add_jobs(experts.down, up, hidden, down);
  multiply(rows.width);

  // Each thread adds to rows of its own, experts in ascending order.
  const int parts = std::min(rows.count, threads_.threads());
  threads_.parallel_for(parts, [&](int part) {
    const int begin = rows.count * part / parts;
    const int behind = rows.count * (part + 1) / parts;
    for (std::size_t i = 0; i < wave.size(); ++i) {
      if (wave[i].row < begin || wave[i].row >= behind) continue;
      float* of_expert = down + i * static_cast<std::size_t>(rows.width);
      for (int d = 0; d < rows.width; ++d) of_expert[d] *= wave[i].weight;
      kernels_.add(rows.out + product(wave[i].row, rows.width), of_expert, rows.width);
    }
  });
}

std::uint64_t CpuExperts::workspace_bytes(const LayerShape::Experts& experts, int width, int rows) {
  if (experts.count == 0) return 0;
  const auto all = static_cast<std::uint64_t>(wave_rows(rows));
  const std::uint64_t floats = all * 2 * static_cast<std::uint64_t>(width + experts.hidden) * sizeof(float);
  const auto chosen = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(experts.used);
  const auto shares = std::min(static_cast<std::uint64_t>(experts.count), all);
  return floats + QuantizedRows::bytes(wave_groups(experts.count, rows), std::max(width, experts.hidden)) +
         2 * (2 * chosen * sizeof(Assignment) + shares * (sizeof(Share) + 2 * sizeof(Job)));
}

std::uint64_t CpuExperts::allocated_bytes() const {
  return (chosen_.capacity() + sorted_.capacity()) * sizeof(Assignment) + shares_.capacity() * sizeof(Share) +
         jobs_.capacity() * sizeof(Job) + rows_.bytes() + gate_.bytes() + up_.bytes() + down_.bytes() +
         quantized_.allocated_bytes();
}

}  // namespace kvasir

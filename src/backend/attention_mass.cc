#include "backend/attention_mass.h"

#include <algorithm>
#include <array>
#include <limits>

#include "backend/cpu/kernels/kernels.h"
#include "base/check.h"

namespace kvasir {
namespace {

double reciprocal_of_sum(const MassKernels& kernels, const float* weights, int n) {
  const double sum = kernels.sum_weights(weights, n);
  return sum == 0 ? 0 : 1.0 / sum;
}

// Reorders the values. NaN if one of them is: comparisons with NaN would not order them.
double median(std::span<double> values) {
  for (const double value : values)
    if (value != value) return std::numeric_limits<double>::quiet_NaN();
  const auto upper = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), upper, values.end());
  if (values.size() % 2 == 1) return *upper;
  return (*std::max_element(values.begin(), upper) + *upper) * 0.5;
}

}  // namespace

const MassKernels& portable_mass_kernels() {
  static const MassKernels kernels{generic_kernels().sum_weights, generic_kernels().add_weights};
  return kernels;
}

void reduce_mass(std::span<const float* const> heads, int n, MassReduction reduction, std::span<double> mass,
                 const MassKernels& kernels) {
  KVASIR_CHECK(!heads.empty() && heads.size() <= static_cast<std::size_t>(kMaxHeads));
  KVASIR_CHECK(n >= 0 && mass.size() == static_cast<std::size_t>(n) && reduction != MassReduction::kNone);
  if (reduction == MassReduction::kMedian) {
    std::array<double, kMaxHeads> scales;
    std::array<double, kMaxHeads> values;
    for (std::size_t h = 0; h < heads.size(); ++h) scales[h] = reciprocal_of_sum(kernels, heads[h], n);
    for (int i = 0; i < n; ++i) {
      for (std::size_t h = 0; h < heads.size(); ++h) values[h] = static_cast<double>(heads[h][i]) * scales[h];
      mass[static_cast<std::size_t>(i)] = median({values.data(), heads.size()});
    }
    return;
  }
  std::ranges::fill(mass, 0.0);
  for (const float* weights : heads) {
    const double scale = reciprocal_of_sum(kernels, weights, n);
    if (reduction == MassReduction::kMax) {
      for (int i = 0; i < n; ++i) {
        const double value = static_cast<double>(weights[i]) * scale;
        double& most = mass[static_cast<std::size_t>(i)];
        most = value > most || value != value ? value : most;
      }
    } else {
      kernels.add_weights(weights, n, scale, mass.data());
    }
  }
  if (reduction == MassReduction::kMean)
    for (double& value : mass) value *= 1.0 / static_cast<double>(heads.size());
}

}  // namespace kvasir

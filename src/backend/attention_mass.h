// Reduces the softmax weights of several query heads to one mass per token: the one definition for all that feed
// retention policies, so that they agree bit for bit.
// Thread-safety: pure functions of their arguments.
#pragma once

#include <span>

#include "backend/mass_reduction.h"

namespace kvasir {

// The two loops over weights, as KernelTable has them: steps 1 and kSum below. Every implementation gives the same
// bits.
struct MassKernels {
  double (*sum_weights)(const float* weights, int n);
  void (*add_weights)(const float* weights, int n, double scale, double* mass);
};
// Those that run on any machine.
const MassKernels& portable_mass_kernels();

// heads: [query heads] pointers to n weights each, in order of token id; mass: [n].
//
// The arithmetic is part of the contract; every other implementation gives the same bits:
//  1. Each head's weights are normalised by their own sum: 16 sums in double, sum k over the elements k, k + 16,
//     k + 32, … in order, starting at 0; then for w = 8, 4, 2, 1: sum[k] += sum[k + w] for k < w. A weight becomes
//     (double)weight * (1.0 / sum[0]). A head whose weights sum to 0 counts as all zeros.
//  2. Per token, over the heads in order:
//       kSum     0 + w[0] + w[1] + …, from left to right
//       kMean    that sum * (1.0 / heads)
//       kMax     the largest, at least 0
//       kMedian  the middle value; for an even number of heads (lower + upper) * 0.5 of the two middle ones
// No multiplication and addition are fused. A NaN weight makes all masses of its head NaN, and so the reduced
// masses.
//
// REQUIRES: 1 <= heads.size() <= kMaxHeads, mass.size() == n, reduction is not kNone (checked).
void reduce_mass(std::span<const float* const> heads, int n, MassReduction reduction, std::span<double> mass,
                 const MassKernels& kernels = portable_mass_kernels());

}  // namespace kvasir

// How products with encoded pages are computed, in every table:
//
// A sum over x[row] * scale[row] * code[row], of one group, takes a = x * scale as 16-bit integers: with
// most = max |a|, n = a * (kMostInteger / most) rounded to nearest even, and unit = most * kUnit, it is
// unit * (sum of n * code), whose integer sum is exact and so does not depend on its order. The error is at most
// unit / 2 for each code: 1/65,534 of the largest |a|, far below what the code itself is off by.
//   keys    score = unit * (sum over dimensions of n * code) + sum of q * least, a = q * scale of the slot's group.
//           q8, whose scales are those of slots: a = q, one unit for all pages, score = unit * (sum over groups of
//           scale * (sum of n * code)).
//   values  sum over slots of weight * value, a = weight * scale of live slots, of all groups of a slot together (one
//           unit for a page and query): unit * (sum of n * code) + sum of weight * least.
// Outliers (q4o) have code 0: element - least times q or weight is added for each, in order of place, to the score
// (before the maximum is taken) or the weighted sum.
// A value of which `most` is not finite is NaN; below kLeastInteger all n are zero.
#pragma once

namespace kvasir {

inline constexpr float kMostInteger = 32767.0F;
inline constexpr float kUnit = 1.0F / 32767.0F;
inline constexpr float kLeastInteger = 1e-33F;  // kMostInteger / it does not overflow

}  // namespace kvasir

// How products with encoded pages are computed, in every table:
//
// A sum over x[row] * scale[row] * code[row], of one group, takes a = x * scale as 16-bit integers: with
// most = max |a|, n = a * (kMostInteger / most) rounded to nearest even, and unit = most * (1 / kMostInteger), it is
// unit * (sum of n * code), whose integer sum is exact and so does not depend on its order. The error is at most
// unit / 2 for each code: 1/65,534 of the largest |a|, far below what the code itself is off by.
//   keys    score = unit * (sum over dimensions of n * code) + sum of q * least, a = q * scale of the slot's group.
//           q8, whose scales are those of slots: a = q, one unit for all pages, score = unit * (sum over groups of
//           scale * (sum of n * code)).
//   values  sum over slots of weight * value, a = weight * scale of live slots, of all groups of a slot together (one
//           unit for a page and query): unit * (sum of n * code) + sum of weight * least.
// Outliers (q4o) have code 0: element - least times q or weight is added for each, in order of place, to the score
// (before the maximum is taken) or the weighted sum.
// i16 (KvType::kI16) has codes of at most kMostWord, and one scale for a token's key and one for its value:
//   keys    score = unit * scale * (sum over groups of kWordGroup dimensions of the sum of n * code), n of a query at
//           most kMostOfQuery.
//   values  entries of at most kStepSlots slots are a step (AttentionPartial::joined). Weights of a step are exp(score
//   -
//           the step's maximum), n is weight * scale as an integer, at most kMostOfWeight: that of the largest scale
//           that the query sees. A step has one sum of n * code for each dimension, and joins the state like a state of
//           its own.
// A value of which `most` is not finite is NaN; below kLeastInteger all n are zero.
#pragma once

namespace kvasir {

inline constexpr float kMostInteger = 32767.0F;

// No sum of products overflows 32 bits: kWordGroup * kMostOfQuery * kMostWord and kStepSlots * kMostOfWeight *
// kMostWord are below 2^31.
inline constexpr int kWordGroup = 64;
inline constexpr int kStepSlots = 128;
inline constexpr float kMostWord = 4095.0F;
inline constexpr float kMostOfQuery = 8191.0F;
inline constexpr float kMostOfWeight = 4095.0F;
inline constexpr float kLeastInteger = 1e-33F;  // kMostInteger / it does not overflow

}  // namespace kvasir

// How the softmax weights of several query heads become one mass per token.
// Thread-safety: plain values.
#pragma once

namespace kvasir {

// The median of an even number is the mean of the two middle values.
enum class MassReduction { kNone, kSum, kMean, kMax, kMedian };

}  // namespace kvasir

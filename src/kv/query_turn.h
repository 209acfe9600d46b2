// How a layer's queries meet its keys: what is needed to tell the weight of a key from a query before its rotation.
#pragma once

#include <memory>
#include <vector>

namespace kvasir {

// A query at position p: pair (2 i, 2 i + 1) is turned by p * frequencies[i], the turned dimensions are multiplied by
// `magnitude`, and all of them by `scale`.
struct QueryTurn {
  std::vector<float> frequencies;  // [rotated dimensions / 2]
  float magnitude = 1;
  float scale = 0;
};

using QueryTurns = std::shared_ptr<const std::vector<QueryTurn>>;  // [layers]; null: not known

}  // namespace kvasir

// Runs one case of the golden file through the engine and reduces it to what must never change: the bits of all logits,
// and which tokens every layer and head retains at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/loaded_model.h"

namespace kvasir::test {

struct GoldenResult {
  std::uint64_t logits = 0;   // XXH3-64 over the logits of all tokens, in order
  std::uint64_t kept = 0;     // XXH3-64 over, per table: the number of retained tokens, then their indices in order
  std::int64_t retained = 0;  // over all tables
};

// Reads tokens [0, prompt) as a prompt in chunks of `chunk` (0: the policy's own), the others one by one as generated.
// `codec`: none: the model's own.
GoldenResult run_golden(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                        std::span<const TokenId> tokens, std::size_t prompt, int chunk,
                        std::optional<KvCodec> codec = {});

// Each registered policy that decides for a whole sequence or by table, once, at sizes far below a test's text.
std::vector<std::string> one_policy_of_each_kind();

}  // namespace kvasir::test

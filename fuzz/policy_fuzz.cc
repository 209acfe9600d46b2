// Policy specs from anywhere: an error or a policy whose own spec makes an equal one.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "retention/registry.h"

namespace {

using namespace kvasir;

void drop_tokens(const KeepPlan& plan, std::vector<TokenIndex>& held) {
  for (const IndexRange& range : plan.drop)
    for (TokenIndex token = range.begin; token < range.end; ++token) KVASIR_CHECK(std::erase(held, token) == 1);
}

// A prompt in two chunks, then single tokens; the masses depend on the row alone.
std::vector<TokenIndex> kept_by(RetentionPolicy& policy) {
  policy.begin({});
  std::vector<TokenIndex> held;
  KeepPlan plan;
  constexpr TokenIndex kPrompt = 40;
  for (TokenIndex next = 0; next < kPrompt + 58;) {
    const bool prompt = next < kPrompt;
    const int rows = chunk_rows(policy, prompt ? static_cast<int>(20 - next % 20) : 1);
    const PolicyChunk chunk{next, rows, prompt, prompt ? kPrompt - next - rows : 0};
    const std::size_t before = held.size();
    for (int row = 0; row < rows; ++row) held.push_back(next + row);
    next += rows;
    for (int row = 0; row < rows && policy.as<ObservesMasses>() != nullptr; ++row) {
      std::vector<double> mass(before + static_cast<std::size_t>(row) + 1);
      for (std::size_t i = 0; i < mass.size(); ++i) mass[i] = static_cast<double>((held[i] * 7 + row) % 11);
      const std::vector<std::span<const double>> masses(reductions_of(policy).size(), mass);
      policy.as<ObservesMasses>()->observe(chunk, 0, row, masses);
    }
    plan.clear();
    policy.end_chunk(chunk, 0, plan);
    drop_tokens(plan, held);
    plan.clear();
    policy.finish_chunk(chunk, 0, plan);
    drop_tokens(plan, held);
  }
  return held;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = make_policy(text);
  if (!policy.ok()) {
    KVASIR_CHECK(!policy.status().message().empty());
    return 0;
  }
  const auto again = make_policy((*policy)->traits().spec);
  KVASIR_CHECK(again.ok() && (*again)->bound() == (*policy)->bound());
  const PolicyTraits& first = (*policy)->traits();
  const PolicyTraits& second = (*again)->traits();
  KVASIR_CHECK(first.spec == second.spec && first.scope == second.scope && first.positions == second.positions);
  KVASIR_CHECK(first.compacts == second.compacts && reductions_of(**policy) == reductions_of(**again));
  KVASIR_CHECK((*policy)->exact_prefix(100) == (*again)->exact_prefix(100));
  KVASIR_CHECK(kept_by(**policy) == kept_by(**again));
  return 0;
}

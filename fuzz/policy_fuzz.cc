// Policy specs from anywhere: an error or a policy whose own spec makes an equal one, by range and by table.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "retention/registry.h"

namespace {

using namespace kvasir;

// A prompt in two passes, then single tokens; the masses depend on the row alone.
std::vector<TokenIndex> kept_by(RetentionPolicy& policy) {
  policy.begin({});
  std::vector<TokenIndex> held;
  KeepPlan plan;
  TokenIndex next = 0;
  for (int step = 0; step < 60; ++step) {
    const int rows = step < 2 ? 20 : 1;
    const PolicyPass pass{next, rows, step < 2, step == 0 ? 20 : 0};
    const std::size_t before = held.size();
    for (int row = 0; row < rows; ++row) held.push_back(next + row);
    next += rows;
    for (int row = 0; row < rows && policy.reduction() != MassReduction::kNone; ++row) {
      std::vector<double> mass(before + static_cast<std::size_t>(row) + 1);
      for (std::size_t i = 0; i < mass.size(); ++i) mass[i] = static_cast<double>((held[i] * 7 + row) % 11);
      policy.observe(pass, 0, row, mass);
    }
    plan.clear();
    policy.end_pass(pass, 0, plan);
    for (const TokenIndex id : plan.drop) KVASIR_CHECK(std::erase(held, id) == 1);
    plan.clear();
    policy.finish_pass(pass, 0, plan);
    for (const TokenIndex id : plan.drop) KVASIR_CHECK(std::erase(held, id) == 1);
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
  const auto again = make_policy((*policy)->spec());
  KVASIR_CHECK(again.ok() && (*again)->spec() == (*policy)->spec() && (*again)->bound() == (*policy)->bound());
  KVASIR_CHECK((*again)->by_table() == (*policy)->by_table() && (*again)->positions() == (*policy)->positions());
  if ((*policy)->by_table()) {
    KVASIR_CHECK(kept_by(**policy) == kept_by(**again));
    return 0;
  }
  for (int i = 0; i < 100; ++i) KVASIR_CHECK((*policy)->advance().end == (*again)->advance().end);
  return 0;
}

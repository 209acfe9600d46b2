#include "retention/projected_values.h"

#include <limits>

#include "base/check.h"
#include "retention/score_list.h"

namespace kvasir {

void weigh_by_projection(std::span<double> scores, std::span<const double> norms, std::int64_t certain) {
  KVASIR_CHECK(scores.size() == norms.size() && certain >= 0 && certain <= std::ssize(scores));
  ScoreList::Lowest lowest(scores, std::ssize(scores) - certain);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] =
        lowest(scores[i]) ? (scores[i] + kProjectionEpsilon) * norms[i] : std::numeric_limits<double>::infinity();
}

Result<bool> projects_values(const PolicyOptions& given) {
  constexpr std::string_view kValues[] = {"off", "wo"};
  const Result<std::string> value = given.get_choice("value", kValues);
  if (!value.ok()) return value.status();
  return *value == "wo";
}

}  // namespace kvasir

#include "engine/driver.h"

#include "base/status.h"

namespace kvasir {

std::vector<StepRequest> Driver::requests_of(std::span<const Turn> turns) {
  std::vector<StepRequest> requests;
  requests.reserve(turns.size());
  for (const Turn& turn : turns) requests.push_back({&turn.task->sequence(), turn.task->input(turn.most_rows)});
  return requests;
}

Status Driver::pass(std::span<const Turn> turns) {
  const std::vector<StepRequest> requests = requests_of(turns);
  std::vector<StepResult> results(requests.size());
  KVASIR_RETURN_IF_ERROR(step_.run(step_.plan(requests), requests, results));
  for (std::size_t i = 0; i < turns.size(); ++i) turns[i].task->take(results[i]);
  return {};
}

}  // namespace kvasir

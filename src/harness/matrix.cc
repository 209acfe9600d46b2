#include "harness/matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"
#include "tasks/json_fields.h"
#include "tasks/messages.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostCells = 10000;
constexpr std::string_view kBudget = "{budget}";

std::string with_budget(std::string policy, std::int64_t budget) {
  for (std::size_t at = policy.find(kBudget); at != std::string::npos; at = policy.find(kBudget, at))
    policy.replace(at, kBudget.size(), fmt::format("{}", budget));
  return policy;
}

Result<MatrixTask> read_task(const Json& object, const std::string& folder) {
  if (!object.is_object()) return JsonFields::wrong("tasks", "a list of objects");
  JsonFields fields(&object);
  MatrixTask task;
  task.data.of_grid = true;
  KVASIR_RETURN_IF_ERROR(fields.text("task", &task.task));
  KVASIR_RETURN_IF_ERROR(fields.text("perplexity", &task.text));
  if (task.task.empty() == task.text.empty())
    return invalid_argument("each of 'tasks' needs either 'task' or 'perplexity'");
  KVASIR_RETURN_IF_ERROR(fields.text("data", &task.data.file));
  KVASIR_RETURN_IF_ERROR(fields.text("filler", &task.filler));
  KVASIR_RETURN_IF_ERROR(fields.reals("depths", &task.data.depths));
  std::int64_t shots = -1, count = task.data.count, seed = 1;
  KVASIR_RETURN_IF_ERROR(fields.number("limit", std::int64_t{1} << 40, &task.data.limit));
  KVASIR_RETURN_IF_ERROR(fields.number("shots", 64, &shots));
  KVASIR_RETURN_IF_ERROR(fields.number("tokens", std::int64_t{1} << 24, &task.data.tokens));
  KVASIR_RETURN_IF_ERROR(fields.number("count", 100000, &count));
  KVASIR_RETURN_IF_ERROR(fields.number("seed", std::int64_t{1} << 62, &seed));
  KVASIR_RETURN_IF_ERROR(fields.number("window", std::int64_t{1} << 24, &task.window));
  KVASIR_RETURN_IF_ERROR(fields.number("windows", std::int64_t{1} << 20, &task.windows));
  KVASIR_RETURN_IF_ERROR(fields.number("prefill", std::int64_t{1} << 24, &task.prefill));
  KVASIR_RETURN_IF_ERROR(fields.refuse_others());
  for (const char* field : {"data", "shots", "tokens", "count", "seed", "depths", "filler"})
    if (object.contains(field)) {
      if (!task.text.empty()) return invalid_argument("'{}' is for a task; a perplexity has none of it", field);
      task.given.emplace_back(field);
    }
  if (!task.text.empty() && object.contains("limit"))
    return invalid_argument("'limit' is for a task; 'windows' says how much of a text is scored");
  for (const char* field : {"window", "windows", "prefill"})
    if (task.text.empty() && object.contains(field))
      return invalid_argument("'{}' is for a perplexity; a task has none of it", field);
  task.data.shots = static_cast<int>(shots);
  task.data.count = static_cast<int>(count);
  task.data.seed = static_cast<std::uint64_t>(seed);
  if (task.prefill < 0) task.prefill = task.window / 2;
  if (!task.text.empty() && (task.window < 4 || task.windows < 1 || task.prefill > task.window - 2))
    return invalid_argument(
        "'window' must be at least 4 tokens, 'windows' at least 1, and 'prefill' 2 below 'window' at most");
  for (std::string* file : {&task.text, &task.data.file, &task.filler})
    if (!file->empty()) *file = (std::filesystem::path(folder) / *file).string();
  if (task.task.ends_with(".json")) task.task = (std::filesystem::path(folder) / task.task).string();
  return task;
}

}  // namespace

Result<Matrix> parse_matrix(std::string_view text, const std::string& folder) {
  const ParsedOrderedJson parsed = parse_ordered_json(text, {.levels = 8, .unique = true});
  const Json& json = parsed.value;
  if (parsed.end == ParsedOrderedJson::End::kRepeatedKey)
    return one_line(
        invalid_argument("an object has '{}' twice: only one of them could count", parsed.error.substr(0, 64)));
  if (parsed.end != ParsedOrderedJson::End::kDone || !json.is_object())
    return invalid_argument("a grid must be a JSON object{}{}", parsed.error.empty() ? "" : ": ",
                            json_reason(parsed.error));
  JsonFields fields(&json);
  std::vector<std::string> policies = {"full"}, codecs = {"f16"};
  std::vector<std::int64_t> budgets;
  KVASIR_RETURN_IF_ERROR(fields.texts("policies", &policies));
  KVASIR_RETURN_IF_ERROR(fields.texts("codecs", &codecs));
  KVASIR_RETURN_IF_ERROR(fields.numbers("budgets", std::int64_t{1} << 40, &budgets));
  Matrix matrix;
  KVASIR_RETURN_IF_ERROR(fields.truth("chat", &matrix.chat));
  KVASIR_RETURN_IF_ERROR(fields.truth("share_prompts", &matrix.share_prompts));
  std::string reading = "together";
  KVASIR_RETURN_IF_ERROR(fields.text("reading", &reading));
  KVASIR_ASSIGN_OR_RETURN(matrix.reading, reading_from_name(reading));
  if (matrix.share_prompts && matrix.reading != Reading::kTogether)
    return invalid_argument("'share_prompts' is for the reading together: others read each context once as it is");
  const Json* tasks = fields.find("tasks");
  KVASIR_RETURN_IF_ERROR(fields.refuse_others());
  const auto varies_with_budget = [](const std::string& policy) { return policy.find(kBudget) != std::string::npos; };
  if (!budgets.empty() && std::ranges::none_of(policies, varies_with_budget))
    return invalid_argument("'budgets' changes nothing: no policy has '{}'", kBudget);
  for (const std::string& policy : policies) {
    const bool varies = varies_with_budget(policy);
    if (varies && budgets.empty()) return invalid_argument("'{}' needs 'budgets'", policy.substr(0, 100));
    for (const std::int64_t budget : varies ? budgets : std::vector<std::int64_t>{0})
      for (const std::string& codec : codecs) {
        CacheSetting setting{with_budget(policy, budget), codec};
        const bool twice = std::ranges::any_of(matrix.settings, [&](const CacheSetting& other) {
          return other.policy == setting.policy && other.codec == setting.codec;
        });
        if (twice)
          return invalid_argument("the grid has '{}' with {} twice", setting.policy.substr(0, 100),
                                  setting.codec.substr(0, 100));
        matrix.settings.push_back(std::move(setting));
      }
  }
  if (tasks == nullptr || !tasks->is_array() || tasks->empty()) return JsonFields::wrong("tasks", "a list of objects");
  for (const Json& each : *tasks) {
    KVASIR_ASSIGN_OR_RETURN(matrix.tasks.emplace_back(), read_task(each, folder));
  }
  if (matrix.share_prompts &&
      std::ranges::none_of(matrix.tasks, [](const MatrixTask& task) { return task.text.empty(); }))
    return invalid_argument("'share_prompts' changes nothing: a perplexity has no prompts to share; leave it out");
  if (matrix.settings.empty() || matrix.settings.size() * matrix.tasks.size() > kMostCells)
    return invalid_argument("the grid has {} cells; it may have 1 to {}", matrix.settings.size() * matrix.tasks.size(),
                            kMostCells);
  return matrix;
}

}  // namespace kvasir

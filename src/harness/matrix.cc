#include "harness/matrix.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostCells = 10000;
constexpr std::string_view kBudget = "{budget}";

Status wrong(std::string_view field, std::string_view what) {
  return invalid_argument("'{}' must be {}", field, what);
}

Status refuse_others(const Json& object, const std::vector<std::string>& fields, std::string_view where) {
  for (const auto& [field, value] : object.items())
    if (std::ranges::find(fields, field) == fields.end())
      return invalid_argument("{} has no field '{}'; there are {}", where, field.substr(0, 64),
                              fmt::join(fields, ", "));
  return {};
}

template <class Value>
Status read(const Json& object, const char* field, const char* what, Value* to) {
  const auto found = object.find(field);
  if (found == object.end()) return {};
  try {
    *to = found->get<Value>();
  } catch (const Json::exception&) {
    return wrong(field, what);
  }
  return {};
}

Status read_count(const Json& object, const char* field, std::int64_t most, std::int64_t* to) {
  const auto found = object.find(field);
  if (found == object.end()) return {};
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    return wrong(field, fmt::format("a whole number up to {}", most));
  *to = found->get<std::int64_t>();
  return {};
}

Status read_budgets(const Json& object, std::vector<std::int64_t>* to) {
  const auto found = object.find("budgets");
  if (found == object.end()) return {};
  const bool fits = found->is_array() && std::ranges::all_of(*found, [](const Json& each) {
                      return each.is_number_unsigned() && each.get<std::uint64_t>() <= std::uint64_t{1} << 40;
                    });
  if (!fits) return wrong("budgets", "a list of whole numbers");
  *to = found->get<std::vector<std::int64_t>>();
  return {};
}

std::string with_budget(std::string policy, std::int64_t budget) {
  for (std::size_t at = policy.find(kBudget); at != std::string::npos; at = policy.find(kBudget, at))
    policy.replace(at, kBudget.size(), fmt::format("{}", budget));
  return policy;
}

Result<MatrixTask> read_task(const Json& object, const std::string& folder) {
  if (!object.is_object()) return wrong("tasks", "a list of objects");
  KVASIR_RETURN_IF_ERROR(refuse_others(object,
                                       {"task", "perplexity", "data", "limit", "shots", "tokens", "count", "seed",
                                        "depths", "filler", "window", "windows", "prefill"},
                                       "a task"));
  MatrixTask task;
  KVASIR_RETURN_IF_ERROR(read(object, "task", "a text", &task.task));
  KVASIR_RETURN_IF_ERROR(read(object, "perplexity", "the name of a file", &task.text));
  if (task.task.empty() == task.text.empty())
    return invalid_argument("each of 'tasks' needs either 'task' or 'perplexity'");
  KVASIR_RETURN_IF_ERROR(read(object, "data", "the name of a file", &task.data.file));
  KVASIR_RETURN_IF_ERROR(read(object, "filler", "the name of a file", &task.filler));
  KVASIR_RETURN_IF_ERROR(read(object, "depths", "a list of numbers", &task.data.depths));
  std::int64_t shots = -1, count = task.data.count, seed = 1;
  KVASIR_RETURN_IF_ERROR(read_count(object, "limit", std::int64_t{1} << 40, &task.data.limit));
  KVASIR_RETURN_IF_ERROR(read_count(object, "shots", 64, &shots));
  KVASIR_RETURN_IF_ERROR(read_count(object, "tokens", std::int64_t{1} << 24, &task.data.tokens));
  KVASIR_RETURN_IF_ERROR(read_count(object, "count", 100000, &count));
  KVASIR_RETURN_IF_ERROR(read_count(object, "seed", std::int64_t{1} << 62, &seed));
  KVASIR_RETURN_IF_ERROR(read_count(object, "window", std::int64_t{1} << 24, &task.window));
  KVASIR_RETURN_IF_ERROR(read_count(object, "windows", std::int64_t{1} << 20, &task.windows));
  KVASIR_RETURN_IF_ERROR(read_count(object, "prefill", std::int64_t{1} << 24, &task.prefill));
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
  const ParsedOrderedJson parsed = parse_ordered_json(text, {.levels = 8});
  const Json& json = parsed.value;
  if (parsed.end != ParsedOrderedJson::End::kDone || !json.is_object())
    return invalid_argument("a grid must be a JSON object{}{}", parsed.error.empty() ? "" : ": ", parsed.error);
  KVASIR_RETURN_IF_ERROR(refuse_others(json, {"policies", "budgets", "codecs", "tasks", "reading", "chat"}, "a grid"));
  std::vector<std::string> policies = {"full"}, codecs = {"f16"};
  std::vector<std::int64_t> budgets;
  KVASIR_RETURN_IF_ERROR(read(json, "policies", "a list of texts", &policies));
  KVASIR_RETURN_IF_ERROR(read(json, "codecs", "a list of texts", &codecs));
  KVASIR_RETURN_IF_ERROR(read_budgets(json, &budgets));
  Matrix matrix;
  KVASIR_RETURN_IF_ERROR(read(json, "chat", "true or false", &matrix.chat));
  std::string reading = "together";
  KVASIR_RETURN_IF_ERROR(read(json, "reading", "a text", &reading));
  KVASIR_ASSIGN_OR_RETURN(matrix.reading, reading_from_name(reading));
  for (const std::string& policy : policies) {
    const bool varies = policy.find(kBudget) != std::string::npos;
    if (varies && budgets.empty()) return invalid_argument("'{}' needs 'budgets'", policy.substr(0, 100));
    for (const std::int64_t budget : varies ? budgets : std::vector<std::int64_t>{0})
      for (const std::string& codec : codecs) matrix.settings.push_back({with_budget(policy, budget), codec});
  }
  const auto tasks = json.find("tasks");
  if (tasks == json.end() || !tasks->is_array() || tasks->empty()) return wrong("tasks", "a list of objects");
  for (const Json& each : *tasks) {
    KVASIR_ASSIGN_OR_RETURN(matrix.tasks.emplace_back(), read_task(each, folder));
  }
  if (matrix.settings.empty() || matrix.settings.size() * matrix.tasks.size() > kMostCells)
    return invalid_argument("the grid has {} cells; it may have 1 to {}", matrix.settings.size() * matrix.tasks.size(),
                            kMostCells);
  return matrix;
}

}  // namespace kvasir

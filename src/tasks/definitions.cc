#include "tasks/definitions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/nearest.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "tasks/definition_texts.h"
#include "tasks/generated/generated_tasks.h"
#include "tasks/messages.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

struct Definitions {
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<TaskDefinition> views;  // of `texts`

  Definitions() {
    for (const std::string_view file :
         {generated_definitions(), gsm_definitions(), infinitebench_definitions(), leval_definitions(),
          longbench_definitions(), longbench_v_two_definitions(), math_definitions(), mmlu_definitions(),
          ruler_definitions(), scbench_definitions()})
      add(file);
    std::ranges::sort(texts);
    for (const auto& [name, text] : texts) views.push_back({name, text});
  }

  void add(std::string_view file) {
    const Json tasks = parse_ordered_json(file).value;
    KVASIR_CHECK(tasks.is_object());
    const Json common = tasks.value("common", Json::object());
    for (const auto& [name, fields] : tasks.items()) {
      if (name == "common") continue;
      Json definition = common;
      definition.update(fields);
      texts.emplace_back(name, definition.dump(2));
    }
  }
};

}  // namespace

std::span<const TaskDefinition> task_definitions() {
  static const Definitions definitions;
  return definitions.views;
}

std::vector<std::string_view> task_names() {
  std::vector<std::string_view> names;
  for (const TaskDefinition& each : task_definitions()) names.push_back(each.name);
  return names;
}

Result<EvalTask> built_in_task(std::string_view name) {
  for (const TaskDefinition& each : task_definitions()) {
    if (each.name != name) continue;
    KVASIR_ASSIGN_OR_RETURN(EvalTask task, parse_task(each.text));
    task.name = name;
    return task;
  }
  std::vector<std::string_view> names = task_names();
  for (const GeneratedTask& each : generated_tasks()) names.push_back(each.name);
  return one_line(
      make_status(StatusCode::kNotFound,
                  "there is no task '{}'{}; 'kvasir eval tasks --list' names all, and a definition of one's "
                  "own is a file that ends in .json",
                  name.substr(0, 64), did_you_mean(name, names)));
}

}  // namespace kvasir

// The definitions of tasks that are part of the program: those of the files of src/tasks/definitions.
// Thread-safety: immutable; built by the first call.
#pragma once

#include <span>
#include <string_view>

namespace kvasir {

struct TaskDefinition {
  std::string_view name;
  std::string_view text;  // JSON, for parse_task
};

// Returns all definitions, in order of name.
std::span<const TaskDefinition> task_definitions();

}  // namespace kvasir

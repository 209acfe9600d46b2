// The fields of an item as variables of a task's templates.
// Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "jinja/jinja.h"
#include "kvasir/status.h"
#include "tasks/task.h"

namespace kvasir {

class ItemVariables {
 public:
  // Has `file` (see file_variable()) alone.
  explicit ItemVariables(std::string_view file) : variables_{{"file", jinja::Value::string(file)}} {}
  // Has the fields of `record`, `index`, and those of `outer` that it lacks. REQUIRES: an object.
  ItemVariables(const nlohmann::ordered_json& record, std::size_t index, const ItemVariables& outer);

  // Returns what the template writes; nothing where it is absent. A null that would become the text "None" is an error:
  // it has no text. Errors: kInvalidArgument that names the template, `name`, or the field that is null.
  Result<std::string> render(const TaskTemplate& text, const char* name) const;

 private:
  Status check_nulls(const TaskTemplate& text, const char* name, std::string_view written) const;

  jinja::Variables variables_;
  jinja::Variables nulls_;  // the fields that hold a null somewhere, with empty texts in their place
};

}  // namespace kvasir

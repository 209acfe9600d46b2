// What the models of a server take, and which fit together.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/serve/serve_models.h"

namespace kvasir::cli {

// Returns the error of a model that the user named and whose size cannot be told, such as that of a broken file. Models
// that are only too large stand in the plan.
Status check_planned(const ModelSet& set);

// Both say whether a server would start with the models, and list the largest sets of models that fit together, for at
// most 12 models.
std::string plan_text(const ModelSet& set);
nlohmann::ordered_json plan_json(const ModelSet& set);

}  // namespace kvasir::cli

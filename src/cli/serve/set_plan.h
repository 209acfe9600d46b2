// What the models of a server take, and which fit together.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/serve/serve_models.h"

namespace kvasir::cli {

// Both list the largest sets of models that fit together, for at most 12 models.
std::string plan_text(const ModelSet& set);
nlohmann::ordered_json plan_json(const ModelSet& set);

}  // namespace kvasir::cli

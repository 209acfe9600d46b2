// Asks an engine of this process, by requests that share its passes.
#pragma once

#include <memory>

#include "harness/subject.h"
#include "kvasir/engine.h"

namespace kvasir {

// `engine` outlives the subject; it should have kv_memory for AskOptions::parallel texts, and nothing else uses it
// meanwhile. `identity`: what Subject::identity returns.
std::unique_ptr<Subject> make_engine_subject(Engine* engine, nlohmann::ordered_json identity);

}  // namespace kvasir

// Asks an engine of this process, by requests that share its passes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "harness/subject.h"
#include "kvasir/engine.h"

namespace kvasir {

// `engine` outlives the subject; it should have kv_memory for AskOptions::parallel texts, and nothing else uses it
// meanwhile. `identity`: what Subject::identity returns. `begin`: the token before a text whose log-likelihood is
// asked, as TestedModel::begin_token(); without one, the text's first token is not scored.
std::unique_ptr<Subject> make_engine_subject(Engine* engine, nlohmann::ordered_json identity,
                                             std::optional<std::int32_t> begin);

}  // namespace kvasir

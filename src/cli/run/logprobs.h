// The log-probabilities of generated tokens as JSON.
#pragma once

#include "cli/command.h"

namespace kvasir::cli {

// Adds `logprobs`, a list with an entry per token, if the options ask for it.
void add_choices(Json& report, const GenerateOptions& options, const GenerateResult& result);

}  // namespace kvasir::cli

// Asks a question about a text longer than the model can hold: of one part after another, then of the answers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/run_options.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

// Cuts a text into parts of at most `limit` tokens and about equal length, at ends of paragraphs, lines or words if
// possible. `sizes`: bytes of the text's tokens, in order. The parts concatenate to the text. REQUIRES: limit > 0.
std::vector<std::string_view> cut_into_parts(std::string_view text, std::int64_t limit,
                                             std::span<const std::size_t> sizes);

// Asks the question of options.prompt about each part of the document in its own session, prints the answers, then asks
// it about all answers together. Errors: those of reading, generating and printing; kInvalidArgument if the question
// leaves no room.
Status run_parts(const RunOptions& options, Engine& engine, std::string_view document);

}  // namespace kvasir::cli

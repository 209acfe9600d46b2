// A question about a text that is longer than the model can hold: asked of one part after another, then of the answers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run_options.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

// Cuts a text into as few parts of at most `limit` tokens as possible, about equally long, at ends of paragraphs, lines
// or words where there are some. `count` tells the tokens of a text. Joined, the parts are the text.
std::vector<std::string_view> cut_into_parts(std::string_view text, std::int64_t limit,
                                             const std::function<std::int64_t(std::string_view)>& count);

// Asks the question of options.prompt about each part of the document in a session of its own, prints the answers, and
// then asks it about all answers together. Errors: those of reading, generating and printing; kInvalidArgument if the
// question leaves no room.
Status run_parts(const RunOptions& options, Engine& engine, std::string_view document);

}  // namespace kvasir::cli

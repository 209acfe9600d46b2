// The line editor of a chat: libedit, with pastes, line ends and UTF-8 as a chat needs them.
#pragma once

#include <memory>
#include <string_view>

#include "cli/chat/line_reader.h"

namespace kvasir::cli {

inline constexpr const char* kContinuation = ". ";  // the prompt of a line that continues another

// Returns whether a line continues in the next: it ends with one backslash. Two are part of the text.
bool continues(std::string_view text);

// Makes the editor, and sets the terminal's mode while the editor lives. Returns null if libedit cannot start.
// REQUIRES: is_editable_terminal().
std::unique_ptr<LineReader> open_line_editor();

}  // namespace kvasir::cli

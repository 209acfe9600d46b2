// The right answer to a question as a text, for conversations that go on behind it.
// Thread-safety: pure function.
#pragma once

#include <string>

#include "tasks/task.h"

namespace kvasir {

// Returns what stands behind a question's prompt in a conversation: a space where there is none yet, the right answer,
// and a line end.
std::string golden_text(const Question& question);

}  // namespace kvasir

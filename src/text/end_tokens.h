// Finds a model's end tokens by their spelling: files name one or two of them, models use more.
// Thread-safety: pure functions.
#pragma once

#include "text/vocabulary.h"

namespace kvasir {

// Marks every token that is spelt like a well-known end token as a control token, whatever kind the file gives it, and
// adds it to `ends`. The first end-of-turn token becomes `eot`, unless one is set already.
void find_end_tokens(Vocabulary* vocabulary);

}  // namespace kvasir

// Which tokens end what a model writes, told by how they are written: files name one or two, models use more.
// Thread-safety: pure functions.
#pragma once

#include "text/vocabulary.h"

namespace kvasir {

// Makes control tokens of all that are written like a well-known end, whatever kind they are called, and adds them to
// `ends`. The first that ends a turn becomes `eot` unless there is one.
void find_end_tokens(Vocabulary* vocabulary);

}  // namespace kvasir

// Splits what a template writes after an answer.
// Thread-safety: pure function.
#pragma once

#include <string_view>

#include "chat/chat_template.h"
#include "text/vocabulary.h"

namespace kvasir {

// The end is the first control or user-defined token written out in `text`, else the first mark <...> or [...], else
// empty.
ChatClosing split_closing(std::string_view text, const Vocabulary& vocabulary);

}  // namespace kvasir

// Takes apart what a template writes after an answer.
// Thread-safety: pure function.
#pragma once

#include <string_view>

#include "chat/chat_template.h"
#include "text/vocabulary.h"

namespace kvasir {

// Its end is the first control token of the vocabulary that is written out in `text`, or the first mark <...> or [...];
// if there is neither, it is empty.
ChatClosing split_closing(std::string_view text, const Vocabulary& vocabulary);

}  // namespace kvasir

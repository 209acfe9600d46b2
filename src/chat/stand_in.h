// Templates for models that bring none.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "chat/chat_template.h"
#include "text/vocabulary.h"

namespace kvasir {

// Returns the first of `markers`, `chatml` and `plain` whose tokens the vocabulary has.
ChatForm stand_in(const Vocabulary& vocabulary);

// Returns the control or user-defined token with this piece.
std::optional<TokenId> find_marker(const Vocabulary& vocabulary, std::string_view piece);

}  // namespace kvasir

// The tokens at a conversation's start that stand for its system message.
// Thread-safety: pure.
#pragma once

#include <cstdint>
#include <span>

#include "chat/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns the number of tokens before the text of the first user message, if they are more than the opening of a user's
// turn: BOS, the system message (given or the template's own), and what the template writes around it. 0 if there is no
// such message, or if the template refuses it. Only the system messages that lead `messages` count.
std::int64_t system_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat, std::span<const ChatMessage> messages);

}  // namespace kvasir

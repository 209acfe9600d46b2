// How much of a conversation's beginning stands for its system message.
// Thread-safety: pure.
#pragma once

#include <cstdint>
#include <span>

#include "chat/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns how many tokens of a conversation come before the text of its first user message, where that is more than the
// opening of a user's turn: BOS, the system message given or written by the template itself, and what the template
// writes around it. 0 if there is no such message, or if the template refuses it. Only the system messages that lead
// `messages` count.
std::int64_t system_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat, std::span<const ChatMessage> messages);

}  // namespace kvasir

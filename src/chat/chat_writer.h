// Writes conversations by a ChatFormat.
// Thread-safety: pure functions.
#pragma once

#include <span>

#include "chat/chat_format.h"
#include "chat/chat_template.h"
#include "kvasir/status.h"

namespace kvasir {

// The part of a conversation to write.
struct ChatPart {
  std::size_t first = 0;     // messages before this one are already in the context
  bool whole = true;         // true: write as render() does; false: as render_next() does
  bool open_answer = false;  // end with the opening of an answer
};

// See ChatTemplate::render() and render_next().
Result<ChatPrompt> write_chat(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatPart& part);

}  // namespace kvasir

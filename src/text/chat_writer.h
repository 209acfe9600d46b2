// Writes conversations by a format.
// Thread-safety: pure functions.
#pragma once

#include <span>

#include "kvasir/status.h"
#include "text/chat_format.h"
#include "text/chat_template.h"

namespace kvasir {

struct ChatPart {
  std::size_t first = 0;     // messages before it stand in the context
  bool whole = true;         // as render() writes it, or as render_next()
  bool open_answer = false;  // ends with the start of an answer
};

// See ChatTemplate::render() and render_next().
Result<ChatPrompt> write_chat(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatPart& part);

}  // namespace kvasir

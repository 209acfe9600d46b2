// Finds how a chat template writes answers: renders conversations that differ in calls and thoughts, and compares the
// texts. What no render shows (some templates leave calls out) is told by the template's marks.
// Thread-safety: pure function.
#pragma once

#include "chat/chat_template.h"
#include "dialogue/answer_format.h"
#include "text/vocabulary.h"

namespace kvasir {

// Takes about ten renders of short conversations.
AnswerFormat find_format(const ChatTemplate& chat, const Vocabulary& vocabulary);

}  // namespace kvasir

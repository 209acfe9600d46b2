// Makes the tokens of a question's prompt and of the texts that are scored behind it.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/subject.h"
#include "kvasir/model_text.h"
#include "tasks/task.h"

namespace kvasir {

using Tokens = std::vector<std::int32_t>;

// A prompt, its context apart from the rest so that it can be read first.
struct QuestionTokens {
  Tokens context;  // of Reading::kTogether: empty
  Tokens prompt;
  std::vector<Tokens> texts;       // kChoices: what is scored
  Tokens golden;                   // of Reading::kConversation: the right answer and a line end
  std::vector<std::string> stops;  // of the chat template
  std::int64_t left_out = 0;       // tokens that were left out to make it fit
};

// `room`: tokens that prompt and answer may have together. Texts are split from the prompt as lm-evaluation-harness
// does: white space that ends the prompt begins the text, both are encoded as one, and the text's tokens are those
// behind as many as the prompt has alone. With a context apart, context and question are encoded apart. Errors:
// kInvalidArgument for invalid UTF-8 and for a prompt that does not fit (Truncation::kRefuse, or an answer that alone
// does not); kUnsupported for a chat read as a conversation.
Result<QuestionTokens> question_tokens(const ModelText& text, const TaskItem& item, std::size_t question,
                                       const AskOptions& options, std::int64_t room);

// A part of a text that is read from an empty cache, for a rolling log-likelihood.
struct RollingWindow {
  Tokens tokens;
  std::size_t first_scored = 1;  // tokens before it are only read
};

// Divides a text into windows of at most `room` tokens that score each token once, as lm-evaluation-harness does: the
// first begins with `begin`, each later one with the last token before it, and the last is filled up with tokens that
// an earlier window scores. REQUIRES: room > 1.
std::vector<RollingWindow> rolling_windows(std::span<const std::int32_t> tokens, std::int32_t begin, std::size_t room);

}  // namespace kvasir

// Makes the tokens of an item's prompts and of the texts that are scored behind them.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/subject.h"
#include "kvasir/model_text.h"
#include "tasks/task.h"

namespace kvasir {

using Tokens = std::vector<std::int32_t>;

struct QuestionTokens {
  Status status;                   // why it cannot be asked; otherwise ok
  Tokens prompt;                   // behind ItemTokens::context
  std::vector<Tokens> texts;       // kChoices: what is scored
  Tokens golden;                   // Reading::kConversation: the right answer and a line end
  std::vector<std::string> stops;  // of the chat template
  std::int64_t left_out = 0;       // tokens of context and prompt that there was no room for
};

struct ItemTokens {
  Tokens context;  // what all questions are read behind; of Reading::kTogether empty
  std::vector<QuestionTokens> questions;
};

// Returns the tokens of all questions of an item. `room`: tokens that a prompt and its answer may have together; with
// Reading::kConversation, all prompts and right answers of the item.
//
// Scored texts are told from their prompt as lm-evaluation-harness does: white space that ends the prompt begins the
// text, both are encoded as one, and the text's tokens are those behind as many as the prompt has alone. A context
// apart and what continues it are encoded one after the other. Errors: kInvalidArgument for invalid UTF-8, kUnsupported
// for a chat read as a conversation; a question that has no room has a status.
Result<ItemTokens> item_tokens(const ModelText& text, const TaskItem& item, const AskOptions& options,
                               std::int64_t room);

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

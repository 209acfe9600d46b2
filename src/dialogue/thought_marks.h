// The marks of thoughts as the generation of an answer needs them.
// Thread-safety: pure functions.
#pragma once

#include <memory>

#include "dialogue/answer_form.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns null where the format knows no thoughts. In the channels of gpt-oss the closing leads to the answer's text;
// with tools only to the next message, which may be a call, and `closing_again` to the text. Errors: as
// Tokenizer::encode.
Result<std::shared_ptr<const ThoughtMarks>> make_thought_marks(const AnswerRules& rules, const Tokenizer& tokenizer);

}  // namespace kvasir

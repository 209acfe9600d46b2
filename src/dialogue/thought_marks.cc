#include "dialogue/thought_marks.h"

#include <string>
#include <utility>

#include "base/status.h"

namespace kvasir {

Result<std::shared_ptr<const ThoughtMarks>> make_thought_marks(const AnswerRules& rules, const Tokenizer& tokenizer) {
  const ThoughtFormat& thoughts = rules.format.thoughts;
  ThoughtMarks marks;
  std::string closing, closing_again;
  if (rules.format.channels) {
    marks = {"<|channel|>analysis<|message|>", {kMessageEnds.begin(), kMessageEnds.end()}};
    marks.anywhere = true;
    closing = "<|end|><|start|>assistant";
    const std::string answers = closing + "<|channel|>final<|message|>";
    (rules.tools.empty() ? closing : closing_again) = answers;
  } else if (!thoughts.open.empty()) {
    marks = {thoughts.open, {thoughts.close}};
    marks.opened = rules.starts_in_thoughts;
    closing = thoughts.closing;
  } else {
    return std::shared_ptr<const ThoughtMarks>();
  }
  const EncodeOptions as_answer{.add_special = false, .parse_special = true, .continues = true};
  KVASIR_ASSIGN_OR_RETURN(marks.closing, tokenizer.encode(closing, as_answer));
  KVASIR_ASSIGN_OR_RETURN(marks.closing_again, tokenizer.encode(closing_again, as_answer));
  return std::make_shared<const ThoughtMarks>(std::move(marks));
}

}  // namespace kvasir

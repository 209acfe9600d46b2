#include "dialogue/thought_marks.h"

#include <string>
#include <utility>

#include "base/status.h"

namespace kvasir {

Result<std::shared_ptr<const ThoughtMarks>> make_thought_marks(const AnswerRules& rules, const Tokenizer& tokenizer) {
  const ThoughtFormat& thoughts = rules.format.thoughts;
  ThoughtMarks marks;
  std::string closing;
  if (rules.format.channels) {
    marks = {"<|channel|>analysis<|message|>", {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"}};
    marks.anywhere = true;
    closing = "<|end|><|start|>assistant";
    if (rules.tools.empty()) closing += "<|channel|>final<|message|>";
  } else if (!thoughts.open.empty()) {
    marks = {thoughts.open, {thoughts.close}};
    marks.opened = rules.starts_in_thoughts;
    closing = thoughts.closing;
  } else {
    return std::shared_ptr<const ThoughtMarks>();
  }
  KVASIR_ASSIGN_OR_RETURN(marks.closing,
                          tokenizer.encode(closing, {.add_special = false, .parse_special = true, .continues = true}));
  return std::make_shared<const ThoughtMarks>(std::move(marks));
}

}  // namespace kvasir

// Simplifies the conditions of a template's branches by facts that hold for every conversation of system, user and
// assistant messages: there are no tools and no documents, and no option is set.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "chat/template_lexer.h"

namespace kvasir {

// A condition without the terms whose value is known.
struct TemplateCondition {
  enum class Verdict {
    kNever,   // always false
    kAlways,  // always true
    kOpen,    // depends on `text`
  };
  Verdict verdict = Verdict::kOpen;
  std::string text;
  std::vector<std::string> alternatives;  // the terms of `text` that are joined by "or"
  bool compound = false;                  // `text` has several terms
};

// Simplifies a condition, given as the tokens behind `if` or `elif`. A condition that is not understood keeps its text.
TemplateCondition simplify_condition(TemplateTokens tokens);

}  // namespace kvasir

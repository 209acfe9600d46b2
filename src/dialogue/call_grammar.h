// Grammars of answers that call tools, in a template's format.
// Thread-safety: pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dialogue/answer_form.h"
#include "grammar/automata/builder.h"
#include "grammar/compiler.h"
#include "grammar/sources/json_text.h"
#include "kvasir/request.h"
#include "kvasir/status.h"

namespace kvasir {

// What an answer may call, and what its content matches.
struct CallDemand {
  ToolChoice choice = ToolChoice::kAuto;
  std::string name;                      // of ToolChoice::kNamed
  std::optional<grammar::Expr> content;  // nullopt: any text
};

// Returns the whole answer: thoughts as the template writes them, if `rules` allow any, text, and calls of `rules`'
// tools. kAuto: any text in which a call's mark begins a call, or the demanded content or calls; the arguments of a
// call match its schema if the tool is strict, and are not restricted by it else. kRequired, kNamed: thoughts, then at
// least one call, all of them with arguments by schema. At most `rules.most_calls` calls. `json`: as in
// call_arguments(). Errors: kInvalidArgument for a name that no tool has, about("tool_choice"); those of
// call_arguments().
Result<grammar::Expr> answer_grammar(grammar::JsonText& json, const AnswerRules& rules, const CallDemand& demand);

// Returns what the answer to a request's messages matches, by its tools, the choice of one, and
// RequestOptions::grammar; null: anything. `rules`: null for an answer that is plain text. Errors: as answer_grammar()
// and ModelText::compile; without RequestOptions::grammar about("tools").
Result<std::shared_ptr<const Grammar>> compile_answer(const GrammarCompiler& compiler, const RequestOptions& options,
                                                      const AnswerRules* rules);

}  // namespace kvasir

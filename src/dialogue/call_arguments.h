// Grammars of the arguments of calls, in a template's format.
// Thread-safety: pure functions on a Builder.
#pragma once

#include <cstddef>
#include <string_view>

#include "dialogue/answer_form.h"
#include "grammar/automata/builder.h"
#include "grammar/sources/json_text.h"
#include "kvasir/status.h"

namespace kvasir {

// Returns the arguments of a tool's calls, in the notation of `format`. `by_schema`: they match the tool's schema; else
// any arguments that the notation can write: in tagged calls texts under the schema's names, in other notations any
// JSON object. `json`: how JSON is written in this grammar. `steps`: what compiling schemas may still take.
//
// In JSON any schema of objects is enforced that json_schema() knows. In other notations the arguments' schema itself
// may have the keywords type, properties, required, a Boolean additionalProperties (further properties are not
// written) and annotations, or be a reference to such a schema; the schemas of properties may be any.
// Errors, about("tools"): as json_schema(); kUnsupported for another keyword, for a required name that is no property
// and for a name that the notation cannot write.
Result<grammar::Expr> call_arguments(grammar::JsonText& json, const AnswerFormat& format, const Tool& tool,
                                     bool by_schema, std::size_t& steps);

// Returns what matches a text of a format. Marks, <...> and [...], are tokens where the vocabulary has them.
grammar::Expr marked(grammar::Builder& builder, std::string_view text);

}  // namespace kvasir

// Grammars in GBNF, the notation of llama.cpp.
// Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "grammar/automata/builder.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

// Reads a grammar, whose texts are those of its rule "root". Control tokens are written "<name>". Errors:
// kInvalidArgument with line and column; kUnsupported for negated tokens and tokens by number.
Result<Rule> parse_gbnf(Builder& builder, std::string_view text);

}  // namespace kvasir::grammar

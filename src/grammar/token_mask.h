// The tokens with which a text may go on.
// Thread-safety: none.
#pragma once

#include "grammar/configurations.h"
#include "grammar/interior.h"
#include "grammar/token_trie.h"

namespace kvasir::grammar {

// Returns the tokens that can follow, end tokens included where the text may end.
TokenBits make_mask(Configurations& configurations, Configurations::Id id, const TokenTrie& trie, Interiors& interiors);

}  // namespace kvasir::grammar

// The place of one text in a grammar.
// Thread-safety: none; copies go on independently, also on other threads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace kvasir {

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  // Returns a bit for each token that can follow, in order of id. End tokens can where the text may end. Errors:
  // kResourceExhausted if the grammar is too ambiguous to be followed.
  Result<std::shared_ptr<const grammar::TokenBits>> mask();

  // Goes on behind a token. Errors: kInvalidArgument if it cannot follow; the place is then unchanged. As mask().
  Status accept(TokenId token);

  // Returns whether the text may end here, and whether it must.
  bool complete() const { return complete_; }
  bool finished();

  // Returns the bytes that must follow, at most `most`; those of a control token (token_trie.h) only whole.
  std::string forced(std::size_t most);

  const Grammar& grammar() const { return *grammar_; }

 private:
  void move_to(grammar::Configurations::Id id);
  void enter_newest_space();
  Status exhausted_error();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<Grammar::Space> space_;
  grammar::Configurations::Id at_ = grammar::Configurations::kNone;
  bool complete_ = false;
};

// Returns the tokens, at most `most`, as which the tokenizer writes the bytes that must follow. The last one is left
// out where the text behind it is not forced, because that may be a part of it.
std::vector<TokenId> forced_tokens(GrammarMatcher& matcher, const Tokenizer& tokenizer, std::size_t most);

}  // namespace kvasir

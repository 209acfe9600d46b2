// Compiles grammars for one vocabulary.
// Thread-safety: any thread may call at any time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/builder.h"
#include "grammar/grammar.h"
#include "grammar/token_trie.h"
#include "kvasir/grammar.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

class GrammarCompiler {
 public:
  // `tokenizer` must outlive this.
  explicit GrammarCompiler(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Errors: as ModelText::compile.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source) const;

  // Returns the grammar whose texts are those of `root`. Errors: as ModelText::compile.
  Result<std::shared_ptr<const Grammar>> compile(const grammar::Builder& builder, grammar::Rule root) const;

 private:
  std::shared_ptr<const grammar::TokenTrie> trie() const;
  std::string token_bytes(std::string_view name) const;

  const Tokenizer& tokenizer_;
  mutable std::mutex mutex_;
  // Made when they are first needed.
  mutable std::shared_ptr<const grammar::TokenTrie> trie_;
  mutable std::optional<std::map<std::string_view, TokenId>> controls_;  // control tokens but for ends, by name
};

namespace grammar {

// Adds the texts of a source to a builder. Errors: as ModelText::compile.
Result<Expr> read_source(Builder& builder, const GrammarSource& source);

}  // namespace grammar
}  // namespace kvasir

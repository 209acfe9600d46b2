// Compiles grammars for one vocabulary.
// Thread-safety: any thread may call at any time.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "grammar/automata/builder.h"
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

  // Keeps the grammars that were compiled last, so that requests with the same source share one and what is known of
  // it. `stop`: as of a Builder. Errors: as ModelText::compile.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source, const std::stop_token& stop = {}) const;

  // Returns the grammar of what `write` adds to a builder. `key`: equal for equal grammars, and not for others. Errors:
  // those of `write`; as above.
  using Write = std::function<Result<grammar::Expr>(grammar::Builder&)>;
  Result<std::shared_ptr<const Grammar>> compile(std::string key, const Write& write,
                                                 const std::stop_token& stop = {}) const;

 private:
  std::shared_ptr<const Grammar> find_kept(const std::string& key) const;
  void keep(std::string key, std::shared_ptr<const Grammar> grammar) const;
  std::shared_ptr<const grammar::TokenTrie> trie() const;
  std::string token_bytes(std::string_view name) const;

  const Tokenizer& tokenizer_;
  mutable std::mutex mutex_;
  struct Kept {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
  };
  mutable std::list<Kept> kept_;  // the newest first
  // Made when they are first needed.
  mutable std::shared_ptr<const grammar::TokenTrie> trie_;
  mutable std::optional<std::map<std::string_view, TokenId>> controls_;  // control tokens but for ends, by name
};

namespace grammar {

// Adds the texts of a source to a builder. Errors: as ModelText::compile.
Result<Expr> read_source(Builder& builder, const GrammarSource& source);

// Returns a schema, or a list of tools with schemas, whose keys stay in order. Errors: kInvalidArgument for text that
// is no JSON; kResourceExhausted beyond 1 MiB, 20,000 keys or 128 levels; kUnsupported as check_numbers().
Result<nlohmann::ordered_json> parse_schema(const std::string& text);

// Returns a text that is equal for equal sources alone.
std::string key_of(const GrammarSource& source);

}  // namespace grammar
}  // namespace kvasir

// A grammar compiled for one vocabulary: the automata, and what has been worked out with them so far. All requests with
// one Grammar share that.
// Thread-safety: any thread may call at any time.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "grammar/configurations.h"
#include "grammar/machine.h"
#include "grammar/token_mask.h"
#include "grammar/token_trie.h"
#include "kvasir/grammar.h"
#include "kvasir/status.h"

namespace kvasir {

class Grammar {
 public:
  // `trie`: of the vocabulary.
  Grammar(grammar::Machine machine, std::shared_ptr<const grammar::TokenTrie> trie);
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const grammar::TokenTrie& trie() const { return *trie_; }

  // Returns the memory that it takes now, approximately.
  std::size_t bytes() const;

  // Computes the masks that would take longest before the first token asks for them.
  void warm() const;

 private:
  friend class GrammarMatcher;

  // `configurations` and the masks belong together: both begin anew when they have grown too large.
  struct Space {
    explicit Space(const grammar::Machine& machine) : configurations(machine) {}
    grammar::Configurations configurations;
    std::unordered_map<grammar::Configurations::Id, std::shared_ptr<const grammar::TokenBits>> masks;
  };

  std::shared_ptr<Space> space() const;  // the newest. REQUIRES: mutex_ is held

  const grammar::Machine machine_;
  const std::shared_ptr<const grammar::TokenTrie> trie_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Space> space_;
  mutable grammar::Interiors interiors_;
};

}  // namespace kvasir

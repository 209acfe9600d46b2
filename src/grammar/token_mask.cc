#include "grammar/token_mask.h"

#include <utility>

#include "grammar/trie_walk.h"

namespace kvasir::grammar {
namespace {

class MaskMaker {
 public:
  MaskMaker(Configurations& configurations, const TokenTrie& trie, TokenBits& mask)
      : configurations_(configurations), trie_(trie), mask_(mask) {}

  // Adds the tokens that go on from a configuration behind a node of the trie.
  void add(std::uint32_t node, Configurations::Id id) {
    const auto& class_of = configurations_.machine().class_of;
    walk(
        trie_.nodes(), node, id, Configurations::kNone,
        [&](Configurations::Id from, std::uint8_t byte) { return configurations_.step(from, class_of[byte]); },
        [&](std::uint32_t at, Configurations::Id) {
          add_tokens(trie_, trie_.nodes()[at], mask_);
          return true;
        });
  }

  // Adds the tokens that leave the rule of an item's state.
  void add_exits(const Interior& interior, std::uint32_t stack) {
    const auto& class_of = configurations_.machine().class_of;
    for (std::size_t i = 0; i < interior.exits.size();) {
      const std::uint32_t state = interior.exits[i].state;
      const Configurations::Id id = configurations_.behind({state, stack});
      while (i < interior.exits.size() && interior.exits[i].state == state) {
        const std::uint8_t byte = interior.exits[i].byte;
        const Configurations::Id to =
            id == Configurations::kNone ? Configurations::kNone : configurations_.step(id, class_of[byte]);
        for (; i < interior.exits.size() && interior.exits[i].state == state && interior.exits[i].byte == byte; ++i) {
          if (to == Configurations::kNone) continue;
          add_tokens(trie_, trie_.nodes()[interior.exits[i].node], mask_);
          add(interior.exits[i].node, to);
        }
      }
    }
  }

 private:
  Configurations& configurations_;
  const TokenTrie& trie_;
  TokenBits& mask_;
};

}  // namespace

TokenBits make_mask(Configurations& configurations, Configurations::Id id, const TokenTrie& trie,
                    Interiors& interiors) {
  TokenBits mask(trie.words());
  if (id == Configurations::kNone) return mask;
  MaskMaker maker(configurations, trie, mask);
  const Configurations::Configuration configuration = configurations[id];  // a copy: new ones move the others
  std::vector<Configurations::Item> few;
  for (const Configurations::Item& item : configuration.items) {
    if (configurations.machine().states[item.state].live_bytes < kInteriorBytes) {
      few.push_back(item);
      continue;
    }
    const Interior& interior = interiors.of(item.state);
    for (std::size_t word = 0; word < mask.size(); ++word) mask[word] |= interior.tokens[word];
    maker.add_exits(interior, item.stack);
  }
  if (!few.empty())
    if (const Configurations::Id rest = configurations.of(std::move(few)); rest != Configurations::kNone)
      maker.add(0, rest);
  if (configuration.complete)
    for (const TokenId end : trie.ends()) add_token(end, mask);
  return mask;
}

}  // namespace kvasir::grammar

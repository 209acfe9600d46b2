// The tokens of a vocabulary as a trie of their bytes.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::grammar {

// The byte that starts a control token, which has no bytes of its own. No valid UTF-8 contains it. Three bytes with the
// token's id follow, the highest first.
inline constexpr std::uint8_t kControlByte = 0xFF;

// Whether a token is matched by these bytes instead of its own: it is shown in no text, and ends none.
bool is_control(const Tokenizer& tokenizer, TokenId token);

// Returns the four bytes that stand for a control token.
std::string control_bytes(TokenId token);

class TokenTrie {
 public:
  // Tokens without bytes that are no control tokens, tokens with the byte 0xFF, and end tokens are left out.
  explicit TokenTrie(const Tokenizer& tokenizer);

  // Nodes are in depth-first order, so the descendants of node i are i + 1 to nodes()[i].end. Node 0 is the root.
  struct Node {
    std::uint32_t end = 0;     // one behind the last descendant
    std::uint32_t tokens = 0;  // index in tokens() of its first token
    std::uint16_t own = 0;     // number of tokens that end here
    std::uint8_t byte = 0;     // from its parent
    std::uint8_t height = 0;   // bytes of the longest path to a descendant; 255: that many or more
  };
  std::span<const Node> nodes() const { return nodes_; }
  // Tokens in order of their bytes. Those of node i and its descendants are tokens()[nodes()[i].tokens, ...).
  std::span<const TokenId> tokens() const { return tokens_; }

  // Returns a token's bytes; empty for tokens that were left out.
  std::string_view bytes_of(TokenId token) const {
    const auto index = static_cast<std::size_t>(token);
    return std::string_view(bytes_).substr(begins_[index], begins_[index + 1] - begins_[index]);
  }

  std::size_t vocabulary() const { return begins_.size() - 1; }
  std::size_t words() const { return (vocabulary() + 63) / 64; }  // of a mask with a bit for each token
  std::span<const TokenId> ends() const { return ends_; }         // end tokens

 private:
  void build();

  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
  std::string bytes_;  // of all tokens
  std::vector<std::size_t> begins_;
  std::vector<TokenId> ends_;
};

}  // namespace kvasir::grammar

// Removes from decoded text the spaces that encoding added.
// Thread-safety: none. Refers to the vocabulary, which must outlive it.
#pragma once

#include <string_view>

#include "text/vocabulary.h"

namespace kvasir {

class SpacePrefix {
 public:
  // `at_start`: the next token starts a text.
  SpacePrefix(const Vocabulary& vocabulary, bool at_start) : vocabulary_(&vocabulary) {
    expected_ = at_start && vocabulary.add_space_prefix;
  }

  // Returns the `bytes` of the next token, without the leading space if encoding added it.
  std::string_view strip(TokenId token, std::string_view bytes) {
    const TokenKind kind = vocabulary_->kinds[static_cast<std::size_t>(token)];
    if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) {
      expected_ = vocabulary_->add_space_prefix;
      return bytes;
    }
    if (expected_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
    expected_ = false;
    return bytes;
  }

  // True if a space at the start of the next token was added by encoding.
  bool expected() const { return expected_; }

 private:
  const Vocabulary* vocabulary_;
  bool expected_;
};

}  // namespace kvasir

#include "grammar/token_trie.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir::grammar {

bool is_control(const Tokenizer& tokenizer, TokenId token) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  return !tokenizer.is_end(token) &&
         (vocabulary.kinds[static_cast<std::size_t>(token)] == TokenKind::kControl || is_marker(vocabulary, token));
}

std::string control_bytes(TokenId token) {
  std::string bytes(1, static_cast<char>(kControlByte));
  for (const int shift : {16, 8, 0}) bytes += static_cast<char>((token >> shift) & 0xFF);
  return bytes;
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  KVASIR_CHECK(vocabulary.pieces.size() < (std::size_t{1} << 24));
  begins_.push_back(0);
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    if (tokenizer.is_end(token)) {
      ends_.push_back(token);
    } else if (is_control(tokenizer, token)) {
      bytes_ += control_bytes(token);
    } else if (const std::string bytes = tokenizer.bytes_of(token);
               bytes.find(static_cast<char>(kControlByte)) == std::string::npos) {
      bytes_ += bytes;
    }
    if (bytes_.size() > begins_.back()) tokens_.push_back(token);
    begins_.push_back(bytes_.size());
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](TokenId a, TokenId b) {
    const int order = bytes_of(a).compare(bytes_of(b));
    return order != 0 ? order < 0 : a < b;
  });
  build();
}

void TokenTrie::build() {
  nodes_.emplace_back();
  std::vector<std::uint32_t> path = {0};  // node of each depth
  const auto close = [&](std::size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  std::string_view before;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = bytes_of(tokens_[i]);
    const auto same = static_cast<std::size_t>(
        std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end()).first - before.begin());
    close(same + 1);
    for (std::size_t depth = same; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      Node& node = nodes_.emplace_back();
      node.tokens = static_cast<std::uint32_t>(i);
      node.byte = static_cast<std::uint8_t>(bytes[depth]);
    }
    ++nodes_[path.back()].own;
    for (std::size_t up = 1; up <= path.size(); ++up) {
      Node& node = nodes_[path[path.size() - up]];
      node.height = std::max(node.height, static_cast<std::uint8_t>(std::min<std::size_t>(up - 1, 255)));
    }
    before = bytes;
  }
  close(0);
}

}  // namespace kvasir::grammar

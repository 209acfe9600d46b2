// Splits a text into tokens recognised whole and the plain text between them: the first stage of every tokenizer.
// Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {

struct Fragment {
  std::size_t begin = 0;
  std::size_t end = 0;
  TokenId token = kNoToken;  // kNoToken: plain text, still to be encoded
};

struct FragmentedText {
  std::string_view only;  // the text if there is one part: that part
  std::string joined;     // otherwise: of all parts
  // From left to right; two plain fragments are never adjacent. White space stripped after a token of `strip_after` is
  // in no fragment.
  std::vector<Fragment> fragments;

  std::string_view text() const { return joined.empty() ? only : std::string_view(joined); }
  std::string_view text_of(const Fragment& fragment) const {
    return text().substr(fragment.begin, fragment.end - fragment.begin);
  }
};

// `reserved` and errors: as Tokenizer::encode_segments(). The result may refer to the text of a part. REQUIRES:
// `special` belongs to the same vocabulary.
Result<FragmentedText> fragment_text(std::span<const TextPart> parts, const Vocabulary& vocabulary,
                                     const SpecialTokens& special, std::span<const TokenId> reserved);

inline bool contains(std::span<const TokenId> tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace kvasir

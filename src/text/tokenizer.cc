#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "text/space_prefix.h"

namespace kvasir {

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes)  // before it is copied
    return invalid_argument("the text is longer than {} MiB; give it in parts", kMaxTextBytes >> 20);
  const TextSegment segment{std::string(text), options.parse_special};
  return encode_segments({&segment, 1}, options.add_special, {}, options.continues);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool special) const {
  SpacePrefix prefix(vocabulary(), true);
  std::string text;
  for (const TokenId token : tokens) {
    const std::string bytes = bytes_of(token, special);
    text += prefix.strip(token, bytes);
  }
  return text;
}

bool Tokenizer::is_end(TokenId token) const {
  const std::vector<TokenId>& ends = vocabulary().ends;
  return token == vocabulary().eos || token == vocabulary().eot ||
         std::find(ends.begin(), ends.end(), token) != ends.end();
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(Vocabulary vocabulary) {
  const bool bpe = vocabulary.tokenizer == TokenizerKind::kBpe;
  return bpe ? make_bpe_tokenizer(std::move(vocabulary)) : make_spm_tokenizer(std::move(vocabulary));
}

}  // namespace kvasir

#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "text/space_prefix.h"

namespace kvasir {

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TextPart part{text, options.parse_special};
  return encode_parts({&part, 1}, options.add_special, {}, options.continues);
}

Result<std::vector<TokenId>> Tokenizer::encode_segments(std::span<const TextSegment> segments, bool add_special,
                                                        std::span<const TokenId> reserved, bool continues) const {
  std::vector<TextPart> parts;
  parts.reserve(segments.size());
  for (const TextSegment& segment : segments) parts.push_back({segment.text, segment.parse_special});
  return encode_parts(parts, add_special, reserved, continues);
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

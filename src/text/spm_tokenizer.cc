#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "text/pair_merging.h"
#include "text/special_tokens.h"
#include "text/token_fragments.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// "<0x0A>" -> 10; nullopt for anything else.
std::optional<std::uint8_t> parse_byte_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char digit : piece.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') {
      value = value * 16 + static_cast<unsigned>(digit - '0');
    } else if (digit >= 'A' && digit <= 'F') {
      value = value * 16 + static_cast<unsigned>(digit - 'A' + 10);
    } else if (digit >= 'a' && digit <= 'f') {
      value = value * 16 + static_cast<unsigned>(digit - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<std::uint8_t>(value);
}

void replace_all(std::string_view text, std::string_view from, std::string_view to, std::string* out) {
  for (std::size_t begin = 0;;) {
    const std::size_t found = text.find(from, begin);
    if (found == std::string_view::npos) {
      *out += text.substr(begin);
      return;
    }
    *out += text.substr(begin, found - begin);
    *out += to;
    begin = found + from.size();
  }
}

// The pairs of characters that are adjacent in some piece. No other pair can merge, so the text splits there into runs
// (mostly words) that are merged separately, in little memory.
class Adjacency {
 public:
  void add_piece(std::string_view piece) {
    std::string_view previous;
    while (!piece.empty()) {
      const std::string_view current = piece.substr(0, utf8_length(piece[0]));
      if (!previous.empty()) add(previous, current);
      previous = current;
      piece.remove_prefix(current.size());
    }
  }

  bool contains(std::string_view left, std::string_view right) const {
    if (left.size() == 1 && right.size() == 1) return ascii_[ascii_index(left, right)];
    return others_.contains(key(left, right));
  }

 private:
  static std::size_t ascii_index(std::string_view left, std::string_view right) {
    return static_cast<std::size_t>(left[0]) * 128 + static_cast<std::size_t>(right[0]);
  }
  static std::uint64_t key(std::string_view left, std::string_view right) {
    std::uint32_t words[2] = {0, 0};
    std::memcpy(&words[0], left.data(), left.size());
    std::memcpy(&words[1], right.data(), right.size());
    return std::uint64_t{words[0]} << 32 | words[1];
  }
  void add(std::string_view left, std::string_view right) {
    if (left.size() == 1 && right.size() == 1) {
      ascii_[ascii_index(left, right)] = true;
    } else {
      others_.insert(key(left, right));
    }
  }

  std::bitset<128 * 128> ascii_;
  std::unordered_set<std::uint64_t> others_;
};

// Of symbols: tokens; kNoToken for a character that is none, or is not looked up yet; and numbers from the vocabulary's
// size on, for texts that exist only between merges. Costs are negated scores, or places in the list of merges.
using SpmMerger = PairMerger<float>;

constexpr std::size_t kMostMerges = std::size_t{1} << 24;  // whose places are floats

std::uint64_t symbols_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

class SpmTokenizer final : public Tokenizer {
 public:
  explicit SpmTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) { byte_tokens_.fill(kNoToken); }
  SpmTokenizer(const SpmTokenizer&) = delete;
  SpmTokenizer& operator=(const SpmTokenizer&) = delete;

  Status initialize();
  std::string bytes_of(TokenId token, bool special) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Encoding {  // state of one call of encode_parts
    std::span<const TokenId> reserved;
    std::vector<TokenId> tokens;
    SpmMerger merger;
  };

  Result<std::vector<TokenId>> encode_parts(std::span<const TextPart> parts, bool add_special,
                                            std::span<const TokenId> reserved, bool continues) const override;
  Status read_merges();
  TokenId intern(std::string_view text);
  std::optional<SpmMerger::Union> find_merge(const MergeSymbol& left, const MergeSymbol& right, std::string_view run,
                                             const Encoding& encoding) const;
  void encode_text(std::string_view text, Encoding* encoding) const;
  void merge_run(std::string_view run, Encoding* encoding) const;
  void emit_character(std::string_view character, Encoding* encoding) const;
  TokenId find(std::string_view piece, std::span<const TokenId> reserved) const;
  bool is_token(TokenId symbol) const {
    return symbol >= 0 && static_cast<std::size_t>(symbol) < vocabulary_.pieces.size();
  }

  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, TokenId> pieces_;  // keys point into vocabulary_.pieces and between_merges_
  std::deque<std::string> between_merges_;                // the texts of symbols that are no tokens
  std::unordered_map<std::uint64_t, SpmMerger::Union> merges_;  // by symbols_key; only of kSpmMerges
  std::array<TokenId, 256> byte_tokens_;
  std::unique_ptr<SpecialTokens> special_;
  Adjacency adjacency_;
  std::size_t longest_piece_ = 0;
};

Status SpmTokenizer::initialize() {
  KVASIR_RETURN_IF_ERROR(check_vocabulary(vocabulary_));
  for (std::size_t i = 0; i < vocabulary_.pieces.size(); ++i) {
    const std::string_view piece = vocabulary_.pieces[i];
    const auto token = static_cast<TokenId>(i);
    const TokenKind kind = vocabulary_.kinds[i];
    if (std::isnan(vocabulary_.scores[i])) return data_loss("the score of token {} is not a number", token);
    if (kind == TokenKind::kByte) {
      const std::optional<std::uint8_t> byte = parse_byte_piece(piece);
      if (!byte) return data_loss("token {} is a byte token, but is not written like \"<0x0A>\"", token);
      byte_tokens_[*byte] = token;
      continue;
    }
    if (piece.empty()) continue;
    // A piece that is not valid UTF-8 cannot result from merging characters.
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown || find_invalid_utf8(piece)) continue;
    pieces_[piece] = token;  // the last of equal pieces counts
    adjacency_.add_piece(piece);
    longest_piece_ = std::max(longest_piece_, piece.size());
  }
  if (!vocabulary_.unknown) {
    const auto missing = std::find(byte_tokens_.begin(), byte_tokens_.end(), kNoToken);
    if (missing != byte_tokens_.end()) {
      return data_loss("the vocabulary has neither a token for byte 0x{:02X} nor an unknown token",
                       missing - byte_tokens_.begin());
    }
  }
  special_ = std::make_unique<SpecialTokens>(vocabulary_);
  return vocabulary_.tokenizer == TokenizerKind::kSpmMerges ? read_merges() : Status();
}

TokenId SpmTokenizer::intern(std::string_view text) {
  if (const auto found = pieces_.find(text); found != pieces_.end()) return found->second;
  const auto symbol = static_cast<TokenId>(vocabulary_.pieces.size() + between_merges_.size());
  pieces_.emplace(between_merges_.emplace_back(text), symbol);
  return symbol;
}

Status SpmTokenizer::read_merges() {
  const std::size_t count = vocabulary_.merges.size();
  const std::size_t symbols = vocabulary_.pieces.size() + 3 * std::min(count, kMostMerges);
  if (count > kMostMerges || symbols > static_cast<std::size_t>(std::numeric_limits<TokenId>::max()))
    return data_loss("the vocabulary has {} merges, more than it can use", count);
  merges_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view merge = vocabulary_.merges[i];
    const std::size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() || merge.rfind(' ') != space)
      return data_loss("merge {} (\"{}\") is not two pieces with a space between them", i, merge);
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    if (find_invalid_utf8(left) || find_invalid_utf8(right)) return data_loss("merge {} is not valid UTF-8", i);
    const std::string both = std::string(left) + std::string(right);
    adjacency_.add_piece(both);
    const TokenId first = intern(left);
    const TokenId second = intern(right);
    // The first of equal merges counts.
    merges_.emplace(symbols_key(first, second), SpmMerger::Union{static_cast<float>(i), intern(both)});
  }
  return {};
}

Result<std::vector<TokenId>> SpmTokenizer::encode_parts(std::span<const TextPart> parts, bool add_special,
                                                        std::span<const TokenId> reserved, bool continues) const {
  KVASIR_ASSIGN_OR_RETURN(const FragmentedText fragmented, fragment_text(parts, vocabulary_, *special_, reserved));
  Encoding encoding;
  encoding.reserved = reserved;
  if (add_special && vocabulary_.add_bos) encoding.tokens.push_back(*vocabulary_.bos);
  std::string escaped;
  for (const Fragment& fragment : fragmented.fragments) {
    if (fragment.token != kNoToken) {
      encoding.tokens.push_back(fragment.token);
      continue;
    }
    // A fragment at the start, or after a recognised token, gets the space, unless the text continues another one.
    escaped.assign(vocabulary_.add_space_prefix && !(continues && fragment.begin == 0) ? kSpace : "");
    replace_all(fragmented.text_of(fragment), " ", kSpace, &escaped);
    encode_text(escaped, &encoding);
  }
  if (add_special && vocabulary_.add_eos) encoding.tokens.push_back(*vocabulary_.eos);
  return std::move(encoding.tokens);
}

void SpmTokenizer::encode_text(std::string_view text, Encoding* encoding) const {
  std::size_t run_begin = 0;
  std::string_view previous;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view current = text.substr(at, utf8_length(text[at]));
    if (!previous.empty() && !adjacency_.contains(previous, current)) {
      merge_run(text.substr(run_begin, at - run_begin), encoding);
      run_begin = at;
    }
    previous = current;
    at += current.size();
  }
  merge_run(text.substr(run_begin), encoding);
}

void SpmTokenizer::merge_run(std::string_view run, Encoding* encoding) const {
  SpmMerger& merger = encoding->merger;
  merger.clear();
  for (std::size_t at = 0; at < run.size();) {
    const std::size_t size = utf8_length(run[at]);
    merger.push(static_cast<std::uint32_t>(size), merges_.empty() ? kNoToken : find(run.substr(at, size), {}));
    at += size;
  }
  merger.merge(
      [&](const MergeSymbol& left, const MergeSymbol& right) { return find_merge(left, right, run, *encoding); });
  merger.for_each([&](const MergeSymbol& symbol) {
    if (is_token(symbol.value) && !contains(encoding->reserved, symbol.value)) {
      encoding->tokens.push_back(symbol.value);
      return;
    }
    for (std::size_t at = symbol.begin; at < symbol.begin + symbol.size;) {
      const std::size_t size = utf8_length(run[at]);
      emit_character(run.substr(at, size), encoding);
      at += size;
    }
  });
}

std::optional<SpmMerger::Union> SpmTokenizer::find_merge(const MergeSymbol& left, const MergeSymbol& right,
                                                         std::string_view run, const Encoding& encoding) const {
  if (vocabulary_.tokenizer == TokenizerKind::kSpmMerges) {
    const auto found = merges_.find(symbols_key(left.value, right.value));
    if (found == merges_.end() || contains(encoding.reserved, found->second.value)) return std::nullopt;
    return found->second;
  }
  if (left.size + right.size > longest_piece_) return std::nullopt;
  const TokenId token = find(run.substr(left.begin, left.size + right.size), encoding.reserved);
  if (token == kNoToken) return std::nullopt;
  return SpmMerger::Union{-vocabulary_.scores[static_cast<std::size_t>(token)], token};
}

void SpmTokenizer::emit_character(std::string_view character, Encoding* encoding) const {
  const TokenId token = find(character, encoding->reserved);
  if (is_token(token)) {
    encoding->tokens.push_back(token);
    return;
  }
  const auto byte_token = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return byte_token(c) == kNoToken; })) {
    encoding->tokens.push_back(*vocabulary_.unknown);
    return;
  }
  for (const char c : character) encoding->tokens.push_back(byte_token(c));
}

TokenId SpmTokenizer::find(std::string_view piece, std::span<const TokenId> reserved) const {
  const auto found = pieces_.find(piece);
  return found == pieces_.end() || contains(reserved, found->second) ? kNoToken : found->second;
}

std::string SpmTokenizer::bytes_of(TokenId token, bool special) const {
  KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < vocabulary_.pieces.size());
  const std::string& piece = vocabulary_.pieces[static_cast<std::size_t>(token)];
  switch (vocabulary_.kinds[static_cast<std::size_t>(token)]) {
    case TokenKind::kUnknown:
    case TokenKind::kControl: return special ? piece : std::string();
    case TokenKind::kUserDefined: return piece;
    case TokenKind::kByte: return std::string(1, static_cast<char>(*parse_byte_piece(piece)));
    case TokenKind::kNormal:
    case TokenKind::kUnused: break;
  }
  std::string text;
  replace_all(piece, kSpace, " ", &text);
  return text;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(Vocabulary vocabulary) {
  auto tokenizer = std::make_unique<SpmTokenizer>(std::move(vocabulary));
  KVASIR_RETURN_IF_ERROR(tokenizer->initialize());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace kvasir

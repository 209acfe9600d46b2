#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "text/byte_alphabet.h"
#include "text/pair_merging.h"
#include "text/pre_tokenizers.h"
#include "text/regex_splitter.h"
#include "text/special_tokens.h"
#include "text/token_fragments.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

// Limits of the word cache: long words rarely repeat, and this many shorter ones suffice.
constexpr std::size_t kLongestRemembered = 64;
constexpr std::size_t kMostRemembered = std::size_t{1} << 18;

using Symbol = std::int32_t;                  // a token; values from the vocabulary's size on exist only between merges
using BpeMerger = PairMerger<std::uint32_t>;  // of symbols; a merge's cost is its place in the file

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  BpeTokenizer(const BpeTokenizer&) = delete;
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;

  Status initialize();
  std::string bytes_of(TokenId token, bool special) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Place {  // where a word's tokens are among those of the whole text
    std::size_t begin;
    std::size_t count;
  };
  struct Encoding {  // state of one call of encode_parts
    std::span<const TokenId> reserved;
    std::vector<TokenId> tokens;
    BpeMerger merger;
    std::unordered_map<std::string_view, Place> words;  // keys point into the text
  };

  Result<std::vector<TokenId>> encode_parts(std::span<const TextPart> parts, bool add_special,
                                            std::span<const TokenId> reserved, bool continues) const override;
  void read_pieces();
  Status read_merge(std::size_t index);
  Symbol intern(std::string bytes);
  void encode_word(std::string_view word, Encoding* encoding) const;
  void merge_word(std::string_view word, Encoding* encoding) const;
  void emit(Symbol symbol, std::string_view bytes, Encoding* encoding) const;
  bool is_token(Symbol symbol) const { return static_cast<std::size_t>(symbol) < vocabulary_.pieces.size(); }

  Vocabulary vocabulary_;
  std::vector<std::string> texts_;                        // of each token, as bytes_of() gives it
  std::deque<std::string> between_merges_;                // the texts of the other symbols
  std::unordered_map<std::string_view, Symbol> symbols_;  // by text
  std::array<Symbol, 256> byte_symbols_{};
  std::unordered_map<std::uint64_t, BpeMerger::Union> merges_;  // by pair_key
  std::optional<RegexSplitter> splitter_;
  std::unique_ptr<SpecialTokens> special_;
  bool ignore_merges_ = false;
};

std::uint64_t pair_key(Symbol left, Symbol right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// Collects the texts of all tokens, and the tokens that merging may produce.
void BpeTokenizer::read_pieces() {
  texts_ = vocabulary_.pieces;
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    const TokenKind kind = vocabulary_.kinds[i];
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown) continue;
    const std::optional<std::string> bytes = piece_to_bytes(texts_[i]);
    if (!bytes || bytes->empty()) continue;
    // User-defined pieces are stored as plain text. A piece that spells another text in the byte alphabet is left out.
    if (kind == TokenKind::kUserDefined && *bytes != texts_[i]) continue;
    texts_[i] = *bytes;
    symbols_[texts_[i]] = static_cast<Symbol>(i);  // the last of equal pieces counts
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = intern(std::string(1, static_cast<char>(byte)));
  }
}

Symbol BpeTokenizer::intern(std::string bytes) {
  const auto found = symbols_.find(bytes);
  if (found != symbols_.end()) return found->second;
  const auto symbol = static_cast<Symbol>(texts_.size() + between_merges_.size());
  symbols_.emplace(between_merges_.emplace_back(std::move(bytes)), symbol);
  return symbol;
}

Status BpeTokenizer::read_merge(std::size_t index) {
  const std::string_view merge = vocabulary_.merges[index];
  const std::size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() || merge.rfind(' ') != space) {
    return data_loss("merge {} (\"{}\") is not two pieces with a space between them", index, merge);
  }
  const std::optional<std::string> left = piece_to_bytes(merge.substr(0, space));
  const std::optional<std::string> right = piece_to_bytes(merge.substr(space + 1));
  if (!left || !right) return data_loss("merge {} (\"{}\") is not written in byte-level BPE's alphabet", index, merge);
  // A merge whose result is no token still counts. Published vocabularies have none; trimmed ones do.
  const BpeMerger::Union merged{static_cast<std::uint32_t>(index), intern(*left + *right)};
  merges_.emplace(pair_key(intern(*left), intern(*right)), merged);  // the first of equal merges counts
  return {};
}

Status BpeTokenizer::initialize() {
  KVASIR_RETURN_IF_ERROR(check_vocabulary(vocabulary_));
  // A symbol per byte may be needed besides the tokens, and three per merge.
  const std::size_t symbols = vocabulary_.pieces.size() + 256 + 3 * vocabulary_.merges.size();
  if (symbols > static_cast<std::size_t>(std::numeric_limits<Symbol>::max())) {
    return data_loss("the vocabulary has {} merges, more than it can use", vocabulary_.merges.size());
  }
  vocabulary_.add_space_prefix = false;
  KVASIR_ASSIGN_OR_RETURN(const PreTokenizer* pre_tokenizer, find_pre_tokenizer(vocabulary_.pre_tokenizer));
  KVASIR_ASSIGN_OR_RETURN(splitter_, RegexSplitter::compile(pre_tokenizer->expressions));
  ignore_merges_ = pre_tokenizer->ignore_merges;
  read_pieces();
  merges_.reserve(vocabulary_.merges.size());
  for (std::size_t i = 0; i < vocabulary_.merges.size(); ++i) KVASIR_RETURN_IF_ERROR(read_merge(i));
  special_ = std::make_unique<SpecialTokens>(vocabulary_);
  return {};
}

Result<std::vector<TokenId>> BpeTokenizer::encode_parts(std::span<const TextPart> parts, bool add_special,
                                                        std::span<const TokenId> reserved, bool /*continues*/) const {
  KVASIR_ASSIGN_OR_RETURN(const FragmentedText fragmented, fragment_text(parts, vocabulary_, *special_, reserved));
  Encoding encoding;
  encoding.reserved = reserved;
  encoding.tokens.reserve(fragmented.text().size() / 4);  // about what prose takes
  if (add_special && vocabulary_.add_bos) encoding.tokens.push_back(*vocabulary_.bos);
  for (const Fragment& fragment : fragmented.fragments) {
    if (fragment.token != kNoToken) {
      encoding.tokens.push_back(fragment.token);
      continue;
    }
    KVASIR_RETURN_IF_ERROR(
        splitter_->split(fragmented.text_of(fragment), [&](std::string_view word) { encode_word(word, &encoding); }));
  }
  if (add_special && vocabulary_.add_eos) encoding.tokens.push_back(*vocabulary_.eos);
  return std::move(encoding.tokens);
}

void BpeTokenizer::encode_word(std::string_view word, Encoding* encoding) const {
  std::vector<TokenId>& tokens = encoding->tokens;
  if (word.size() > kLongestRemembered) return merge_word(word, encoding);
  const auto known = encoding->words.find(word);
  if (known != encoding->words.end()) {
    const Place place = known->second;
    for (std::size_t i = 0; i < place.count; ++i) tokens.push_back(TokenId{tokens[place.begin + i]});
    return;
  }
  const std::size_t begin = tokens.size();
  merge_word(word, encoding);
  if (encoding->words.size() < kMostRemembered) encoding->words.emplace(word, Place{begin, tokens.size() - begin});
}

void BpeTokenizer::merge_word(std::string_view word, Encoding* encoding) const {
  if (ignore_merges_) {
    const auto whole = symbols_.find(word);
    if (whole != symbols_.end() && is_token(whole->second) && !contains(encoding->reserved, whole->second)) {
      encoding->tokens.push_back(whole->second);
      return;
    }
  }
  BpeMerger& merger = encoding->merger;
  merger.clear();
  for (const char c : word) merger.push(1, byte_symbols_[static_cast<unsigned char>(c)]);
  merger.merge([&](const MergeSymbol& left, const MergeSymbol& right) -> std::optional<BpeMerger::Union> {
    const auto found = merges_.find(pair_key(left.value, right.value));
    if (found == merges_.end() || contains(encoding->reserved, found->second.value)) return std::nullopt;
    return found->second;
  });
  merger.for_each(
      [&](const MergeSymbol& symbol) { emit(symbol.value, word.substr(symbol.begin, symbol.size), encoding); });
}

// Appends the symbol's token, or the tokens of its bytes, or the unknown token for a byte without one. A file may name
// a control token as its unknown token (SmolLM2's is <|endoftext|>); text never becomes that, so the byte is left out.
void BpeTokenizer::emit(Symbol symbol, std::string_view bytes, Encoding* encoding) const {
  if (is_token(symbol)) {
    encoding->tokens.push_back(symbol);
    return;
  }
  const std::optional<TokenId> unknown = vocabulary_.unknown;
  const bool has_unknown = unknown && vocabulary_.kinds[static_cast<std::size_t>(*unknown)] != TokenKind::kControl;
  for (const char byte : bytes) {
    const Symbol one = byte_symbols_[static_cast<unsigned char>(byte)];
    if (is_token(one) || has_unknown) encoding->tokens.push_back(is_token(one) ? one : *unknown);
  }
}

std::string BpeTokenizer::bytes_of(TokenId token, bool special) const {
  KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < texts_.size());
  const TokenKind kind = vocabulary_.kinds[static_cast<std::size_t>(token)];
  const bool hidden = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
  return hidden && !special ? std::string() : texts_[static_cast<std::size_t>(token)];
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(Vocabulary vocabulary) {
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(vocabulary));
  KVASIR_RETURN_IF_ERROR(tokenizer->initialize());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace kvasir

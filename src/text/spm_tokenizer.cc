#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr TokenValue kNone = -1;
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// REQUIRES: `lead` starts a character of valid UTF-8.
std::size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

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

// Which two characters stand side by side in some piece. No merge can join two that never do, so that text falls
// apart there into runs that are merged on their own, words mostly, in small memory.
class Adjacency {
 public:
  void add_piece(std::string_view piece) {
    std::string_view previous;
    while (!piece.empty()) {
      const std::string_view current = piece.substr(0, character_length(piece[0]));
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

// A stretch of the text: one recognised token, or text still to be merged.
struct Fragment {
  std::size_t begin = 0;
  std::size_t end = 0;
  TokenValue token = kNone;
  bool parse_special = false;
};

struct Symbol {
  std::uint32_t begin;
  std::uint32_t size;  // 0: merged into its left neighbour
  std::int32_t previous;
  std::int32_t next;
  TokenValue token;  // kNone for a character not looked up yet
};

struct Merge {
  float score;
  std::int32_t left;
  std::int32_t right;
  std::uint32_t size;  // of both together when found; another size since then makes the entry stale
  TokenValue token;
};

// The order of a max-heap: best score on top, leftmost first among equals.
bool merges_later(const Merge& a, const Merge& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

bool contains(std::span<const TokenValue> tokens, TokenValue token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

class SpmTokenizer final : public Tokenizer {
 public:
  explicit SpmTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) { byte_tokens_.fill(kNone); }
  SpmTokenizer(const SpmTokenizer&) = delete;
  SpmTokenizer& operator=(const SpmTokenizer&) = delete;

  Status initialize();
  Result<std::vector<TokenValue>> encode_segments(std::span<const TextSegment> segments, bool add_special,
                                                  std::span<const TokenValue> reserved, bool continues) const override;
  std::string bytes_of(TokenValue token, bool special) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Encoding {  // what one call of encode_segments works on
    std::span<const TokenValue> reserved;
    std::vector<TokenValue> tokens;
    std::vector<Symbol> symbols;
    std::vector<Merge> heap;
  };

  Status check_ids() const;
  std::vector<Fragment> split_off(std::string_view text, std::span<const TokenValue> reserved,
                                  const std::vector<Fragment>& parts) const;
  void encode_text(std::string_view text, Encoding* encoding) const;
  void merge_run(std::string_view run, Encoding* encoding) const;
  void find_merge(std::string_view run, std::int32_t left, Encoding* encoding) const;
  void emit_character(std::string_view character, Encoding* encoding) const;
  TokenValue find(std::string_view piece, std::span<const TokenValue> reserved) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, TokenValue> pieces_;  // keys point into vocabulary_.pieces
  std::array<TokenValue, 256> byte_tokens_;
  std::unique_ptr<SpecialTokens> special_;
  Adjacency adjacency_;
  std::size_t longest_piece_ = 0;
};

Status SpmTokenizer::check_ids() const {
  const std::size_t size = vocabulary_.pieces.size();
  if (size == 0) return data_loss("the vocabulary is empty");
  if (size > static_cast<std::size_t>(std::numeric_limits<TokenValue>::max())) {
    return data_loss("the vocabulary has {} tokens, more than an id can number", size);
  }
  if (vocabulary_.scores.size() != size || vocabulary_.kinds.size() != size) {
    return data_loss("the vocabulary has {} tokens, but {} scores and {} token types", size, vocabulary_.scores.size(),
                     vocabulary_.kinds.size());
  }
  const std::pair<const char*, std::optional<TokenValue>> ids[] = {{"BOS", vocabulary_.bos},
                                                                   {"EOS", vocabulary_.eos},
                                                                   {"end-of-turn", vocabulary_.eot},
                                                                   {"unknown", vocabulary_.unknown}};
  for (const auto& [name, id] : ids) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= size)) {
      return data_loss("the {} token is {}, but the vocabulary ends at {}", name, *id, size - 1);
    }
  }
  if (vocabulary_.add_bos && !vocabulary_.bos) return data_loss("BOS is to be added, but the vocabulary names none");
  if (vocabulary_.add_eos && !vocabulary_.eos) return data_loss("EOS is to be added, but the vocabulary names none");
  return {};
}

Status SpmTokenizer::initialize() {
  KVASIR_RETURN_IF_ERROR(check_ids());
  for (std::size_t i = 0; i < vocabulary_.pieces.size(); ++i) {
    const std::string_view piece = vocabulary_.pieces[i];
    const auto token = static_cast<TokenValue>(i);
    const TokenKind kind = vocabulary_.kinds[i];
    if (std::isnan(vocabulary_.scores[i])) return data_loss("the score of token {} is not a number", token);
    if (kind == TokenKind::kByte) {
      const std::optional<std::uint8_t> byte = parse_byte_piece(piece);
      if (!byte) return data_loss("token {} is a byte token, but is not written like \"<0x0A>\"", token);
      byte_tokens_[*byte] = token;
      continue;
    }
    if (piece.empty()) continue;
    // A piece that is not valid UTF-8 cannot be made of characters.
    if (kind == TokenKind::kControl || kind == TokenKind::kUnknown || find_invalid_utf8(piece)) continue;
    pieces_[piece] = token;  // the last of equal pieces counts
    adjacency_.add_piece(piece);
    longest_piece_ = std::max(longest_piece_, piece.size());
  }
  if (!vocabulary_.unknown) {
    const auto missing = std::find(byte_tokens_.begin(), byte_tokens_.end(), kNone);
    if (missing != byte_tokens_.end()) {
      return data_loss("the vocabulary has neither a token for byte 0x{:02X} nor an unknown token",
                       missing - byte_tokens_.begin());
    }
  }
  special_ = std::make_unique<SpecialTokens>(vocabulary_);
  return {};
}

Result<std::vector<TokenValue>> SpmTokenizer::encode_segments(std::span<const TextSegment> segments, bool add_special,
                                                              std::span<const TokenValue> reserved,
                                                              bool continues) const {
  std::size_t total = 0;
  for (const TextSegment& segment : segments) {
    if (segment.text.size() > kMaxTextBytes - total) {
      return invalid_argument("the text is longer than {} MiB; give it in parts", kMaxTextBytes >> 20);
    }
    total += segment.text.size();
  }
  std::string text;
  std::vector<Fragment> fragments;
  for (const TextSegment& segment : segments) {
    if (const auto offset = find_invalid_utf8(segment.text)) {
      return invalid_argument(
          "the text is not valid UTF-8 at byte {} (0x{:02X}); convert it with iconv, for example "
          "`iconv -f WINDOWS-1252 -t UTF-8`",
          text.size() + *offset, static_cast<unsigned char>(segment.text[*offset]));
    }
    if (segment.text.empty()) continue;
    fragments.push_back({text.size(), text.size() + segment.text.size(), kNone, segment.parse_special});
    text += segment.text;
  }
  fragments = split_off(text, reserved, fragments);

  Encoding encoding;
  encoding.reserved = reserved;
  if (add_special && vocabulary_.add_bos) encoding.tokens.push_back(*vocabulary_.bos);
  std::string escaped;
  for (std::size_t i = 0; i < fragments.size();) {
    if (fragments[i].token != kNone) {
      encoding.tokens.push_back(fragments[i++].token);
      continue;
    }
    // Adjacent texts of different segments are one text. It starts the whole or follows a recognised token: both take
    // the space, unless the whole continues another text.
    const std::size_t begin = fragments[i].begin;
    std::size_t end = begin;
    for (; i < fragments.size() && fragments[i].token == kNone; ++i) end = fragments[i].end;
    escaped.assign(vocabulary_.add_space_prefix && !(continues && begin == 0) ? kSpace : "");
    replace_all(std::string_view(text).substr(begin, end - begin), " ", kSpace, &escaped);
    encode_text(escaped, &encoding);
  }
  if (add_special && vocabulary_.add_eos) encoding.tokens.push_back(*vocabulary_.eos);
  return std::move(encoding.tokens);
}

std::vector<Fragment> SpmTokenizer::split_off(std::string_view text, std::span<const TokenValue> reserved,
                                              const std::vector<Fragment>& parts) const {
  std::vector<Fragment> split;
  for (const Fragment& part : parts) {
    const std::string_view part_text = text.substr(part.begin, part.end - part.begin);
    std::size_t rest = part.begin;
    for (const SpecialTokens::Place& place : special_->find(part_text, part.parse_special, reserved)) {
      const std::size_t begin = part.begin + place.begin;
      const std::size_t end = begin + vocabulary_.pieces[static_cast<std::size_t>(place.token)].size();
      if (begin > rest) split.push_back({rest, begin, kNone, part.parse_special});
      split.push_back({begin, end, place.token, part.parse_special});
      rest = end;
    }
    if (rest < part.end) split.push_back({rest, part.end, kNone, part.parse_special});
  }
  return split;
}

void SpmTokenizer::encode_text(std::string_view text, Encoding* encoding) const {
  std::size_t run_begin = 0;
  std::string_view previous;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view current = text.substr(at, character_length(text[at]));
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
  if (run.empty()) return;
  std::vector<Symbol>& symbols = encoding->symbols;
  std::vector<Merge>& heap = encoding->heap;
  symbols.clear();
  for (std::size_t at = 0; at < run.size();) {
    const std::size_t size = character_length(run[at]);
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(size), index - 1, index + 1, kNone});
    at += size;
  }
  symbols.back().next = kNone;

  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) find_merge(run, static_cast<std::int32_t>(i), encoding);
  while (!heap.empty()) {
    const Merge merge = heap.front();
    std::pop_heap(heap.begin(), heap.end(), merges_later);
    heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(merge.left)];
    Symbol& right = symbols[static_cast<std::size_t>(merge.right)];
    if (left.size == 0 || right.size == 0 || left.size + right.size != merge.size) continue;
    left.size = merge.size;
    left.token = merge.token;
    left.next = right.next;
    right.size = 0;
    if (left.next != kNone) symbols[static_cast<std::size_t>(left.next)].previous = merge.left;
    if (left.previous != kNone) find_merge(run, left.previous, encoding);
    find_merge(run, merge.left, encoding);
  }

  for (std::int32_t i = 0; i != kNone; i = symbols[static_cast<std::size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
    if (symbol.token != kNone) {
      encoding->tokens.push_back(symbol.token);
    } else {
      emit_character(run.substr(symbol.begin, symbol.size), encoding);
    }
  }
}

// Puts the merge of symbol `left` with the one after it on the heap, if there is one.
void SpmTokenizer::find_merge(std::string_view run, std::int32_t left, Encoding* encoding) const {
  const Symbol& first = encoding->symbols[static_cast<std::size_t>(left)];
  if (first.next == kNone) return;
  const std::uint32_t size = first.size + encoding->symbols[static_cast<std::size_t>(first.next)].size;
  if (size > longest_piece_) return;
  const TokenValue token = find(run.substr(first.begin, size), encoding->reserved);
  if (token == kNone) return;
  encoding->heap.push_back({vocabulary_.scores[static_cast<std::size_t>(token)], left, first.next, size, token});
  std::push_heap(encoding->heap.begin(), encoding->heap.end(), merges_later);
}

void SpmTokenizer::emit_character(std::string_view character, Encoding* encoding) const {
  const TokenValue token = find(character, encoding->reserved);
  if (token != kNone) {
    encoding->tokens.push_back(token);
    return;
  }
  const auto byte_token = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return byte_token(c) == kNone; })) {
    encoding->tokens.push_back(*vocabulary_.unknown);
    return;
  }
  for (const char c : character) encoding->tokens.push_back(byte_token(c));
}

TokenValue SpmTokenizer::find(std::string_view piece, std::span<const TokenValue> reserved) const {
  const auto found = pieces_.find(piece);
  return found == pieces_.end() || contains(reserved, found->second) ? kNone : found->second;
}

std::string SpmTokenizer::bytes_of(TokenValue token, bool special) const {
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

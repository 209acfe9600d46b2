#include "text/special_tokens.h"

#include <algorithm>
#include <functional>
#include <map>

namespace kvasir {
namespace {

auto byte_at(std::size_t depth) {
  return [depth](std::string_view piece) { return static_cast<unsigned char>(piece[depth]); };
}

}  // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {
  std::map<std::string_view, std::vector<TokenId>> sorted;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    if (kind != TokenKind::kControl && kind != TokenKind::kUnknown && kind != TokenKind::kUserDefined) continue;
    if (!vocabulary.pieces[i].empty()) sorted[vocabulary.pieces[i]].push_back(static_cast<TokenId>(i));
  }
  for (auto& [piece, tokens] : sorted) {
    auto& [begin, end] = by_first_[static_cast<unsigned char>(piece[0])];
    if (begin == end) begin = pieces_.size();
    end = pieces_.size() + 1;
    pieces_.push_back(piece);
    tokens_.push_back(std::move(tokens));
  }
}

// Returns the length of the longest piece that `text` starts with, 0 if none, and adds the lengths of all such pieces.
// REQUIRES: text not empty.
std::size_t SpecialTokens::match(std::string_view text, std::vector<std::size_t>* lengths) const {
  auto [begin, end] = by_first_[static_cast<unsigned char>(text[0])];
  std::size_t longest = 0;
  for (std::size_t depth = 1; begin < end; ++depth) {  // pieces begin to end start with the first `depth` bytes
    if (pieces_[begin].size() == depth) {
      longest = depth;
      lengths->push_back(depth);
      ++begin;
    }
    if (depth == text.size()) break;
    const auto first = pieces_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = pieces_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto byte = byte_at(depth);
    const auto wanted = static_cast<unsigned char>(text[depth]);
    const auto low = std::partition_point(first, last, [&](const auto& piece) { return byte(piece) < wanted; });
    const auto high = std::partition_point(low, last, [&](const auto& piece) { return byte(piece) == wanted; });
    begin = static_cast<std::size_t>(low - pieces_.begin());
    end = static_cast<std::size_t>(high - pieces_.begin());
  }
  return longest;
}

// Returns the first token spelt `piece` that may match in the part.
TokenId SpecialTokens::token_of(std::string_view piece, const Query& query) const {
  const auto [begin, end] = by_first_[static_cast<unsigned char>(piece[0])];
  const auto last = pieces_.begin() + static_cast<std::ptrdiff_t>(end);
  const auto found = std::lower_bound(pieces_.begin() + static_cast<std::ptrdiff_t>(begin), last, piece);
  if (found == last || *found != piece) return kNoToken;
  for (const TokenId token : tokens_[static_cast<std::size_t>(found - pieces_.begin())]) {
    if (query.parse_special) return token;
    if (vocabulary_->kinds[static_cast<std::size_t>(token)] == TokenKind::kUserDefined &&
        std::find(query.reserved.begin(), query.reserved.end(), token) == query.reserved.end())
      return token;
  }
  return kNoToken;
}

// Resolves the overlapping candidates of a stretch of text. `lengths`: the lengths that occur in it, longest first.
void SpecialTokens::settle(const Query& query, std::size_t begin, std::size_t end,
                           const std::vector<std::size_t>& lengths, std::vector<Place>* places) const {
  const auto first_place = static_cast<std::ptrdiff_t>(places->size());
  std::vector<bool> taken(end - begin);
  std::vector<Place> candidates;
  for (const std::size_t length : lengths) {
    // An earlier match is at least as long, so an overlap covers one end of this candidate.
    const auto is_free = [&](std::size_t at) { return !taken[at - begin] && !taken[at + length - 1 - begin]; };
    candidates.clear();
    for (std::size_t at = begin; at + length <= end; ++at) {
      if (!is_free(at)) continue;
      const TokenId token = token_of(query.text.substr(at, length), query);
      if (token != kNoToken) candidates.push_back({at, token});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Place& a, const Place& b) { return a.token < b.token; });
    for (const Place& place : candidates) {
      if (!is_free(place.begin)) continue;
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(place.begin - begin), length, true);
      places->push_back(place);
    }
  }
  std::sort(places->begin() + first_place, places->end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
}

std::vector<SpecialTokens::Place> SpecialTokens::find(std::string_view text, bool parse_special,
                                                      std::span<const TokenId> reserved) const {
  const Query query{text, parse_special, reserved};
  std::vector<Place> places;
  std::vector<std::size_t> lengths;
  const auto unique_lengths = [&] {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    lengths.clear();
    const std::size_t begin = at;
    std::size_t end = at + match(text.substr(at), &lengths);
    if (end == begin) continue;
    // A stretch ends where no candidate spans the boundary.
    for (++at; at < end; ++at) {
      end = std::max(end, at + match(text.substr(at), &lengths));
      if (lengths.size() > 4096) unique_lengths();
    }
    --at;
    unique_lengths();
    settle(query, begin, end, lengths, &places);
  }
  return places;
}

}  // namespace kvasir

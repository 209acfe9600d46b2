#include "text/token_fragments.h"

#include <algorithm>

#include "base/status.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

Status check_text(std::span<const TextPart> parts) {
  std::size_t total = 0;
  for (const TextPart& part : parts) {
    if (part.text.size() > kMaxTextBytes - total) {
      return invalid_argument("the text is longer than {} MiB; give it in parts", kMaxTextBytes >> 20);
    }
    KVASIR_RETURN_IF_ERROR(check_utf8(part.text, total));
    total += part.text.size();
  }
  return {};
}

class Fragmenter {
 public:
  Fragmenter(const Vocabulary& vocabulary, FragmentedText* out) : vocabulary_(vocabulary), out_(*out) {}

  void add_token(std::size_t begin, std::size_t end, TokenId token) {
    out_.fragments.push_back({begin, end, token});
    const std::vector<TokenId>& strip = vocabulary_.strip_after;
    strips_ = std::find(strip.begin(), strip.end(), token) != strip.end();
  }

  void add_plain(std::size_t begin, std::size_t end) {
    if (strips_) begin += white_space_prefix(out_.text().substr(begin, end - begin));
    if (begin == end) return;
    strips_ = false;
    std::vector<Fragment>& fragments = out_.fragments;
    if (!fragments.empty() && fragments.back().token == kNoToken) {
      fragments.back().end = end;
    } else {
      fragments.push_back({begin, end, kNoToken});
    }
  }

 private:
  const Vocabulary& vocabulary_;
  FragmentedText& out_;
  bool strips_ = false;
};

}  // namespace

Result<FragmentedText> fragment_text(std::span<const TextPart> parts, const Vocabulary& vocabulary,
                                     const SpecialTokens& special, std::span<const TokenId> reserved) {
  KVASIR_RETURN_IF_ERROR(check_text(parts));
  FragmentedText fragmented;
  if (parts.size() == 1) {
    fragmented.only = parts.front().text;
  } else {
    for (const TextPart& part : parts) fragmented.joined += part.text;
  }
  Fragmenter fragmenter(vocabulary, &fragmented);
  std::size_t part_begin = 0;
  for (const TextPart& part : parts) {
    std::size_t rest = part_begin;
    for (const SpecialTokens::Place& place : special.find(part.text, part.parse_special, reserved)) {
      const std::size_t begin = part_begin + place.begin;
      const std::size_t end = begin + vocabulary.pieces[static_cast<std::size_t>(place.token)].size();
      fragmenter.add_plain(rest, begin);
      fragmenter.add_token(begin, end, place.token);
      rest = end;
    }
    part_begin += part.text.size();
    fragmenter.add_plain(rest, part_begin);
  }
  return fragmented;
}

}  // namespace kvasir

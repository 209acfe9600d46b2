#include "text/token_fragments.h"

#include <algorithm>

#include "base/status.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

Status check_text(std::span<const TextSegment> segments) {
  std::size_t total = 0;
  for (const TextSegment& segment : segments) {
    if (segment.text.size() > kMaxTextBytes - total) {
      return invalid_argument("the text is longer than {} MiB; give it in parts", kMaxTextBytes >> 20);
    }
    KVASIR_RETURN_IF_ERROR(check_utf8(segment.text, total));
    total += segment.text.size();
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
    if (strips_) begin += white_space_prefix(std::string_view(out_.text).substr(begin, end - begin));
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

Result<FragmentedText> fragment_text(std::span<const TextSegment> segments, const Vocabulary& vocabulary,
                                     const SpecialTokens& special, std::span<const TokenId> reserved) {
  KVASIR_RETURN_IF_ERROR(check_text(segments));
  FragmentedText fragmented;
  for (const TextSegment& segment : segments) fragmented.text += segment.text;
  Fragmenter fragmenter(vocabulary, &fragmented);
  std::size_t segment_begin = 0;
  for (const TextSegment& segment : segments) {
    std::size_t rest = segment_begin;
    for (const SpecialTokens::Place& place : special.find(segment.text, segment.parse_special, reserved)) {
      const std::size_t begin = segment_begin + place.begin;
      const std::size_t end = begin + vocabulary.pieces[static_cast<std::size_t>(place.token)].size();
      fragmenter.add_plain(rest, begin);
      fragmenter.add_token(begin, end, place.token);
      rest = end;
    }
    segment_begin += segment.text.size();
    fragmenter.add_plain(rest, segment_begin);
  }
  return fragmented;
}

}  // namespace kvasir

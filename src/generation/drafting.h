// Drafts of the tokens that a text may go on with, without a model: the tokens that followed its newest ones before
// (prompt lookup decoding, Saxena 2023). A pass runs drafts behind the token that was drawn, and a draft comes true if
// it is the token that its logits lead to. So drafts change no token, only how many a pass gives.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct DraftOptions {
  int match = 3;  // the least newest tokens that must have occurred before, 1 to 16
  int most = 7;   // drafts of a pass, 1 to kMostDrafts
};
inline constexpr int kMostDrafts = 7;  // a pass with them has Sequence::kFewRows rows

// Reads "ngram" or "ngram:match=N,most=N"; "" and "off" give none. Errors: kInvalidArgument.
Result<std::optional<DraftOptions>> parse_draft(std::string_view spec);

// Returns up to `most` tokens that followed the longest earlier occurrence of the newest tokens, `history` and then
// `next`; of equally long ones the newest. Where they reach the newest tokens, they go on as these did. Empty if fewer
// than `match` tokens occurred before.
std::vector<TokenId> tokens_that_followed(std::span<const TokenId> history, TokenId next, int match, int most);

// Drafts for one text. Pauses where few come true: a pass of several rows takes longer.
class Drafting {
 public:
  explicit Drafting(const DraftOptions& options) : options_(options), length_(options.most) {}

  // As tokens_that_followed; empty during a pause, which each call shortens.
  std::vector<TokenId> draft(std::span<const TokenId> history, TokenId next);
  // Takes in how many of a pass's drafts came true.
  void note(int drafted, int came_true);

  // Says that the text can have no drafts, and why.
  void refuse(std::string_view why) { refused_ = why; }
  std::string_view refused() const { return refused_; }

  std::int64_t drafted() const { return drafted_; }      // tokens so far
  std::int64_t came_true() const { return came_true_; }  // of these

 private:
  DraftOptions options_;
  int length_;        // of the next draft, at most
  int failures_ = 0;  // drafts in a row of which nothing came true
  int pause_ = 0;     // tokens
  std::string_view refused_;
  std::int64_t drafted_ = 0;
  std::int64_t came_true_ = 0;
};

}  // namespace kvasir

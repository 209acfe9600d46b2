// Drafts of the tokens that a text may go on with. A pass runs drafts behind the token that was drawn, and a draft
// comes true if it is the token that its logits lead to. So drafts change no token, only how many a pass gives.
//
// Three sources: the tokens that followed the newest ones before (prompt lookup decoding, Saxena 2023); a smaller model
// (speculative decoding, Leviathan et al. 2023); and the model itself where it attends to fewer tokens
// (self-speculation over a bounded cache, as in TriForce, Sun et al. 2024, and MagicDec, Chen et al. 2024).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct DraftOptions {
  int match = 3;       // the least newest tokens that must have occurred before, 1 to 16
  int most = 7;        // drafts of a pass, 1 to kMostDrafts
  bool model = false;  // a smaller model drafts
  // The model itself drafts, and attends to what this policy would keep. Empty: it does not.
  std::string policy;

  // Whether passes of a model make the drafts; otherwise they are what followed before.
  bool run() const { return model || !policy.empty(); }
};
inline constexpr int kMostDrafts = 7;  // a pass with them has Sequence::kFewRows rows

// Reads "ngram", "ngram:match=N,most=N", "model", "model:most=N" or "policy:SPEC", whose SPEC it does not look at; ""
// and "off" give none.
// Errors: kInvalidArgument.
Result<std::optional<DraftOptions>> parse_draft(std::string_view spec);

// Returns up to `most` tokens that followed the longest earlier occurrence of the newest tokens, `history` and then
// `next`; of equally long ones the newest. Where they reach the newest tokens, they go on as these did. Empty if fewer
// than `match` tokens occurred before.
std::vector<TokenId> tokens_that_followed(std::span<const TokenId> history, TokenId next, int match, int most);

// Drafts for one text. Pauses where few come true, as a pass of several rows takes longer, and drafts of a model also
// where passes with them have taken longer for each token than passes without.
class Drafting {
 public:
  explicit Drafting(const DraftOptions& options) : options_(options), length_(options.most) {}

  const DraftOptions& options() const { return options_; }

  // As tokens_that_followed; empty during a pause, which each call shortens. REQUIRES: !options().run().
  std::vector<TokenId> draft(std::span<const TokenId> history, TokenId next);
  // Returns how many drafts a model should make now; 0 during a pause, which each call shortens, and while a pass
  // without drafts must be timed. REQUIRES: options().run().
  int wanted();
  // Takes in how many of a pass's drafts came true.
  void note(int drafted, int came_true);
  // Takes in what a pass of the text took, with the passes that made its drafts. `tokens`: that it gave the text;
  // `drafted`: whether it had drafts. No effect unless a model drafts.
  void note_seconds(double seconds, int tokens, bool drafted);

  // Says that the text can have no drafts, and why.
  void refuse(std::string_view why) { refused_ = why; }
  std::string_view refused() const { return refused_; }
  // Says why there is no draft now, though there may be one later.
  void excuse(std::string_view why) { excuse_ = why; }
  // Returns why there were none at all; empty where there were some, or only pauses.
  std::string_view why_none() const {
    return !refused_.empty() ? refused_ : drafted_ == 0 ? excuse_ : std::string_view();
  }

  std::int64_t drafted() const { return drafted_; }      // tokens so far
  std::int64_t came_true() const { return came_true_; }  // of these

 private:
  DraftOptions options_;
  int length_;        // of the next draft, at most
  int failures_ = 0;  // drafts in a row of which nothing came true
  int pause_ = 0;     // tokens
  // Of drafts that a model makes:
  double plain_seconds_ = 0;    // of a pass without drafts, smoothed; 0: none was timed
  double drafted_seconds_ = 0;  // of the passes with drafts since the last pause, and what they gave
  std::int64_t drafted_tokens_ = 0;
  int drafted_passes_ = 0;
  int losses_ = 0;  // pauses in a row because drafts took longer
  std::string_view refused_;
  std::string_view excuse_;
  std::int64_t drafted_ = 0;
  std::int64_t came_true_ = 0;
};

}  // namespace kvasir

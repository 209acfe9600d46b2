#include "generation/drafting.h"

#include <algorithm>
#include <charconv>

#include "base/status.h"

namespace kvasir {
namespace {

constexpr int kLongestMatch = 32;                        // a longer one says no more
constexpr std::size_t kSearched = std::size_t{1} << 17;  // newest tokens
constexpr int kLongestPause = 64;
// Drafts of a model: passes with drafts between two decisions, and the longest pause after them, in tokens.
constexpr int kTrial = 8;
constexpr int kShortestTrialPause = 32;
constexpr int kLongestTrialPause = 512;

Status read_number(std::string_view value, std::string_view name, int most, int* number) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number);
  if (error != std::errc() || end != value.data() + value.size() || *number < 1 || *number > most)
    return invalid_argument("draft: {}={} is not a number from 1 to {}", name, value, most).about({"draft"});
  return {};
}

}  // namespace

Result<std::optional<DraftOptions>> parse_draft(std::string_view spec) {
  if (spec.empty() || spec == "off") return std::optional<DraftOptions>();
  const std::string_view kind = spec.substr(0, spec.find(':'));
  DraftOptions options;
  if (kind == "policy") {
    options.policy = spec.substr(std::min(spec.size(), kind.size() + 1));
    if (!options.policy.empty()) return std::optional(std::move(options));
    return invalid_argument("draft 'policy' needs the policy, such as policy:streaming:cap=512").about({"draft"});
  }
  options.model = kind == "model";
  if (kind != "ngram" && !options.model)
    return invalid_argument(
               "draft '{:.200}' is unknown; give ngram, with :match=N,most=N if need be, model, "
               "policy:streaming:cap=N, "
               "or off",
               spec)
        .about({"draft"});
  for (std::string_view rest = spec.substr(std::min(spec.size(), kind.size() + 1)); !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::string_view name = part.substr(0, part.find('='));
    const std::string_view value = part.substr(std::min(part.size(), name.size() + 1));
    if (name != "most" && (name != "match" || options.model))
      return invalid_argument("draft {} has no option '{}'; it has {}", kind, name,
                              options.model ? "most" : "match and most")
          .about({"draft"});
    KVASIR_RETURN_IF_ERROR(
        read_number(value, name, name == "match" ? 16 : kMostDrafts, name == "match" ? &options.match : &options.most));
  }
  return std::optional(options);
}

std::vector<TokenId> tokens_that_followed(std::span<const TokenId> history, TokenId next, int match, int most) {
  if (history.size() > kSearched) history = history.last(kSearched);
  const auto size = std::ssize(history);
  std::ptrdiff_t best = -1;
  int longest = match - 1;
  // `at` is an earlier place of `next`. Behind it follows what is drafted.
  for (std::ptrdiff_t at = size - 1; at >= 0; --at) {
    if (history[static_cast<std::size_t>(at)] != next) continue;
    int length = 1;
    while (length < kLongestMatch && length <= at &&
           history[static_cast<std::size_t>(at - length)] == history[static_cast<std::size_t>(size - length)])
      ++length;
    if (length <= longest) continue;
    longest = length;
    best = at;
    if (length == kLongestMatch) break;
  }
  if (best < 0) return {};
  // Behind `next` the drafts follow themselves: what comes round, comes round again.
  std::vector<TokenId> tokens;
  for (std::ptrdiff_t at = best + 1; std::ssize(tokens) < most; ++at)
    tokens.push_back(at < size    ? history[static_cast<std::size_t>(at)]
                     : at == size ? next
                                  : tokens[static_cast<std::size_t>(at - size - 1)]);
  return tokens;
}

std::vector<TokenId> Drafting::draft(std::span<const TokenId> history, TokenId next) {
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  return tokens_that_followed(history, next, options_.match, length_);
}

int Drafting::wanted() {
  if (plain_seconds_ == 0) return 0;
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return length_;
}

void Drafting::note_seconds(double seconds, int tokens, bool drafted) {
  if (!options_.run()) return;
  if (!drafted) {
    plain_seconds_ = plain_seconds_ == 0 ? seconds : plain_seconds_ + (seconds - plain_seconds_) / 4;
    return;
  }
  drafted_seconds_ += seconds;
  drafted_tokens_ += tokens;
  if (++drafted_passes_ < kTrial) return;
  const bool pays = drafted_seconds_ < plain_seconds_ * static_cast<double>(drafted_tokens_);
  // Passes without drafts take longer as the text grows: a pause of one token lets one be timed again.
  losses_ = pays ? 0 : losses_ + 1;
  pause_ = pays ? 1 : std::min(kShortestTrialPause << std::min(losses_ - 1, 6), kLongestTrialPause);
  drafted_seconds_ = 0;
  drafted_tokens_ = drafted_passes_ = 0;
}

void Drafting::note(int drafted, int came_true) {
  drafted_ += drafted;
  came_true_ += came_true;
  if (came_true == 0) {
    // What drafts of a model cost is timed.
    if (!options_.run()) pause_ = std::min(1 << std::min(failures_++, 6), kLongestPause);
    length_ = std::max(length_ / 2, 1);
    return;
  }
  failures_ = 0;
  length_ = came_true == drafted ? options_.most : std::max(came_true + 1, length_ / 2);
  length_ = std::min(length_, options_.most);
}

}  // namespace kvasir

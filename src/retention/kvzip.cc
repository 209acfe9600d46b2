#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kKvzipOptions[] = {
    {"budget", "1024", kBudgetRange,
     "tokens kept at the end of a prompt, on average over all heads, or their share of the tokens seen, rounded up"},
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"recent", "16", "0 to 2^40", "last tokens of the prompt, never dropped; counted in budget"},
    {"share", "model", "model, layer or head",
     "the tokens of highest score among all heads stay, or among those of a layer, or each head keeps equally many"},
    {"repeat", "2048", "64 to 2^20", "tokens that the model repeats at a time"},
    kPosOption,
    kProtectOption,
};

enum class Share { kModel, kLayer, kHead };

struct KvzipOptions {
  KeepRule rule;
  Share share = Share::kModel;
  std::int64_t repeat = 2048;
};

class KvzipPolicy final : public ScoredPolicy, public RepeatsText {
 public:
  KvzipPolicy(Traits traits, const KvzipOptions& options) : ScoredPolicy(std::move(traits)), options_(options) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override {
    auto copy = std::make_unique<KvzipPolicy>(*this);
    copy->reserve_text(text_.size());
    return copy;
  }
  bool wants(const PolicyChunk&, int, int) const override { return observing_; }
  // Answers are repeated with the next prompt: the policy takes their tokens.
  bool rests_while_generating() const override { return false; }

  void finish_chunk(const PolicyChunk& chunk, int table, KeepPlan&) override {
    if (observing_ || !chunk.ends_prompt() || table + 1 < layout().tables()) return;
    std::int64_t held = 0;
    for (int t = 0; t < layout().tables(); ++t) held += list(t).size();
    pending_ = held > target() * layout().tables() && !text_.empty();
  }

  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart) const override {
    return invalid_argument("policy '{}' has the model repeat the whole text and cannot be part of a composition",
                            traits().spec);
  }

  void take_text(std::span<const TokenId> tokens) override {
    if (observing_) return;
    reserve_text(text_.size() + tokens.size());
    text_.insert(text_.end(), tokens.begin(), tokens.end());
  }
  std::span<const TokenId> text() const override { return text_; }

  Part next_part() const override {
    if (!pending_ || observing_) return {};
    const std::span<const TokenId> text(text_);
    return {text.first(repeated_).last(std::min(repeated_, kLead)),
            text.subspan(repeated_, std::min(text.size() - repeated_, static_cast<std::size_t>(options_.repeat)))};
  }
  void observe_part() override { observing_ = true; }
  void end_part(const RetentionPolicy& clone) override {
    const auto& observed = static_cast<const KvzipPolicy&>(clone);
    for (int table = 0; table < layout().tables(); ++table) {
      const std::span<double> scores = list(table).values();
      std::ranges::copy(observed.list(table).values().first(scores.size()), scores.begin());
    }
    repeated_ += next_part().tokens.size();
    pending_ = repeated_ < text_.size();
  }

  void evict(int table, KeepPlan& plan) override {
    if (table == 0) shares_ = shares();
    ScoreList& list = this->list(table);
    const std::int64_t candidates = this->candidates(table), share = shares_[static_cast<std::size_t>(table)];
    if (share < candidates) list.drop_lowest(candidates - share, options_.rule.sinks, candidates, list.values());
    list.hand_over(plan);
    if (table + 1 < layout().tables()) return;
    std::vector<std::int64_t>().swap(shares_);
    std::vector<TokenId>().swap(text_);
    repeated_ = 0;
  }

  int most_part(std::int64_t tokens) const override {
    return static_cast<int>(std::min(tokens, options_.repeat) + static_cast<std::int64_t>(kLead));
  }

 private:
  // Tokens before a part that the instruction shows, as in the published code.
  static constexpr std::size_t kLead = 8;

  Capabilities capabilities() const override { return ScoredPolicy::capabilities().with<RepeatsText>(this); }

  // The capacity of the text follows from its size alone, so that a restored text takes what it took.
  static constexpr std::size_t text_capacity(std::size_t tokens) {
    constexpr std::size_t kStep = 256;
    return (tokens + kStep - 1) / kStep * kStep;
  }
  void reserve_text(std::size_t tokens) { text_.reserve(text_capacity(tokens)); }

  // A token's score: the most that any query head gave it while any part was repeated.
  void score(ScoreList& list, const Step&, std::span<const double> mass) override { raise_to(list.values(), mass); }
  void prune(ScoreList&, const Step&) override {}

  // Returns what a table keeps on average.
  std::int64_t target() const {
    return std::max(options_.rule.budget.at(seen()), options_.rule.sinks + options_.rule.recent);
  }
  std::int64_t candidates(int table) const {
    return std::max<std::int64_t>(list(table).size() - options_.rule.recent, 0);
  }

  // Returns how many of its candidates each table keeps.
  std::vector<std::int64_t> shares() const {
    const int tables = layout().tables();
    const int together = options_.share == Share::kModel   ? tables
                         : options_.share == Share::kLayer ? layout().per_layer
                                                           : 1;
    std::vector<std::int64_t> shares(static_cast<std::size_t>(tables));
    for (int first = 0; first < tables; first += together)
      set_shares(first, std::span(shares).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(together)));
    return shares;
  }

  // Sets the shares of tables from `first` on: sinks, and the highest scores among all their candidates. Of equal
  // scores that at the larger place counts as higher, then that of the lower table.
  void set_shares(int first, std::span<std::int64_t> shares) const {
    const auto tables = static_cast<int>(shares.size());
    const auto score = [&](int t, std::int64_t place) {
      const double given = list(first + t).values()[static_cast<std::size_t>(place)];
      return std::isnan(given) ? std::numeric_limits<double>::infinity() : given;
    };
    std::int64_t left = target() * tables, all = 0, longest = 0;
    for (int t = 0; t < tables; ++t) all += candidates(first + t);
    std::vector<double> competing;
    competing.reserve(static_cast<std::size_t>(all));
    for (int t = 0; t < tables; ++t) {
      const std::int64_t count = candidates(first + t), sinks = std::min(options_.rule.sinks, count);
      for (std::int64_t i = sinks; i < count; ++i) competing.push_back(score(t, i));
      shares[static_cast<std::size_t>(t)] = sinks;
      left -= sinks + list(first + t).size() - count;
      longest = std::max(longest, count);
    }
    if (left <= 0) return;
    left = std::min(left, std::ssize(competing));
    if (left == 0) return;
    std::ranges::nth_element(competing, competing.begin() + left - 1, std::greater());
    const double least = competing[static_cast<std::size_t>(left - 1)];
    const auto take = [&](const auto& stays) {
      for (std::int64_t i = longest - 1; i >= options_.rule.sinks; --i)
        for (int t = 0; t < tables; ++t)
          if (i < candidates(first + t) && left > 0 && stays(score(t, i)))
            ++shares[static_cast<std::size_t>(t)], --left;
    };
    take([&](double given) { return given > least; });
    take([&](double given) { return given == least; });
  }

  std::uint64_t common_state_bytes() const override { return text_.capacity() * sizeof(TokenId); }
  std::uint64_t most_common_state_bytes(std::int64_t tokens) const override {
    return text_capacity(static_cast<std::size_t>(tokens)) * sizeof(TokenId);
  }
  void save_common(ByteWriter& out) const override {
    out.put(std::uint8_t{pending_});
    out.put(std::uint64_t{repeated_});
    out.put(std::uint64_t{text_.size()});
    for (const TokenId token : text_) out.put(token);
  }
  bool restore_common(ByteReader& in) override {
    std::uint8_t pending = 0;
    std::uint64_t repeated = 0, size = 0;
    if (!in.get(pending) || !in.get(repeated) || !in.get(size)) return false;
    if (pending > 1 || size > static_cast<std::uint64_t>(seen()) ||
        repeated % static_cast<std::uint64_t>(options_.repeat) != 0 || (pending == 1 ? repeated >= size : repeated > 0))
      return false;
    std::vector<TokenId>().swap(text_);
    for (std::uint64_t i = 0; i < size; ++i) {
      TokenId token = 0;
      if (!in.get(token)) return false;
      reserve_text(text_.size() + 1);
      text_.push_back(token);
    }
    pending_ = pending == 1;
    repeated_ = repeated;
    return true;
  }

  KvzipOptions options_;
  std::vector<TokenId> text_;  // tokens that came since the last repetition
  bool pending_ = false;       // text_ is to be repeated before the next chunk
  std::size_t repeated_ = 0;   // tokens of text_ that have been repeated
  std::vector<std::int64_t> shares_;
  bool observing_ = false;
};

Result<std::unique_ptr<RetentionPolicy>> make_kvzip(const PolicyOptions& given) {
  KvzipOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.rule, KeepRule::read(given));
  constexpr std::string_view kShares[] = {"model", "layer", "head"};
  const Result<std::string> share = given.get_choice("share", kShares);
  if (!share.ok()) return share.status();
  options.share = *share == "model" ? Share::kModel : *share == "layer" ? Share::kLayer : Share::kHead;
  KVASIR_ASSIGN_OR_RETURN(options.repeat, given.get_int("repeat", 64, std::int64_t{1} << 20));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  traits.reduction = MassReduction::kMax;
  traits.scope = PolicyScope::kHead;
  traits.acts = ScoredPolicy::Acts::kAtPromptEnd;
  return {std::make_unique<KvzipPolicy>(std::move(traits), options)};
}

}  // namespace

const PolicyInfo kKvzipPolicy{
    .name = "kvzip",
    .summary = "the tokens that the model attends to when it repeats the prompt: for any question that may follow",
    .formula =
        "when a prompt has ended, run it again behind an instruction to repeat it; score = the most weight that any "
        "query head of the group gives a token then; keep sinks, the last recent, and the highest scores, in all "
        "budget for each head",
    .reference = "KVzip, Kim et al., arXiv 2505.23416",
    .options = kKvzipOptions,
    .acts = "behind a prompt, for all KV heads together",
    .make = make_kvzip,
};

}  // namespace kvasir

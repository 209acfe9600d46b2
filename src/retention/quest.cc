#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "retention/registry.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

// Keeps everything, as `full`. What a generated token reads of it is chosen by sequence/quest_selector.h.
class QuestPolicy final : public RetentionPolicy, public LeavesUnread, public RanksSegments {
 public:
  QuestPolicy(PolicyTraits traits, const Budget& budget) : RetentionPolicy(std::move(traits)), budget_(budget) {}

  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<QuestPolicy>(*this); }
  TokenIndex seen() const override { return seen_; }
  bool all_read() const override { return all_read_; }
  const Budget& segment_budget() const override { return budget_; }
  void retained(int, int run, std::vector<IndexRange>& ranges) const override {
    if (run == 0 && seen_ > 0) ranges.push_back({0, seen_});
  }
  std::int64_t exact_prefix(std::int64_t n) const override { return std::max<std::int64_t>(n, 0); }
  void end_chunk(const PolicyChunk& chunk, int, KeepPlan& plan) override {
    KVASIR_CHECK(chunk.first == seen_);
    for (int row = 0; row < chunk.rows; ++row) {
      ++seen_;
      if (chunk.rows > 1) plan.held.push_back(seen_);
    }
    if (!chunk.prompt && seen_ > budget_.at(seen_)) all_read_ = false;
  }
  std::uint64_t state_bytes() const override { return 0; }
  std::uint64_t most_state_bytes(const TableLayout&, std::int64_t, int) const override { return 0; }

 private:
  Capabilities capabilities() const override { return Capabilities().with<LeavesUnread, RanksSegments>(this); }
  void save_state(ByteWriter& out) const override {
    out.put(seen_);
    out.put(static_cast<std::uint8_t>(all_read_));
  }
  bool restore_state(ByteReader& in) override {
    constexpr std::int64_t kMost = std::int64_t{1} << 61;
    std::uint8_t all = 0;
    if (!in.get(seen_) || !in.get(all)) return false;
    all_read_ = all == 1;
    return seen_ >= 0 && seen_ <= kMost && all <= 1;
  }

  Budget budget_;
  std::int64_t seen_ = 0;
  bool all_read_ = true;
};

constexpr PolicyOption kQuestOptions[] = {
    {"budget", "2048", "16 to 2^40, or above 0% to 100%",
     "tokens that a generated token reads in each KV head, or their share of those so far, rounded up"},
};

Result<std::unique_ptr<RetentionPolicy>> make_quest(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const Budget budget, given.get_budget("budget", kMostTokens));
  if (!budget.is_share()) KVASIR_RETURN_IF_ERROR(given.get_int("budget", 16, kMostTokens).status());
  PolicyTraits traits;
  traits.spec = given.canonical({"budget"});
  return {std::make_unique<QuestPolicy>(std::move(traits), budget)};
}

}  // namespace

const PolicyInfo kQuestPolicy{
    .name = "quest",
    .summary = "keeps everything; a generated token reads the segments of 16 tokens that may fit its queries best",
    .formula = "read the segments with the largest sum_d max(q_d * min_d, q_d * max_d), up to budget tokens",
    .reference = "Quest: Tang et al., arXiv 2406.10774",
    .options = kQuestOptions,
    .acts = "for every generated token, per KV head, from the third layer on; it drops nothing",
    .make = make_quest,
};

}  // namespace kvasir

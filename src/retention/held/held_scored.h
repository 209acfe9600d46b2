// The base of policies that score all tokens of a table at once, from the keys and values that it holds: keydiff,
// lagkv, expected, triattention, matching.
//
// A prompt is pruned when it ends, or at the end of each of its chunks (prompt=blocks), so that memory is bounded while
// it is read. While tokens are generated a prune follows whenever `every` of them are above the budget.
//
// Thread-safety: as ScoredPolicy's.
#pragma once

#include "retention/scored.h"

namespace kvasir {

struct HeldScoredOptions {
  KeepRule rule;        // its `every` holds while tokens are generated
  bool blocks = false;  // each chunk of a prompt is pruned

  // Reads budget, every, prompt, and those of sinks, recent and protect that the policy has. Errors: as
  // KeepRule::read.
  static Result<HeldScoredOptions> read(const PolicyOptions& given);
};

class HeldScoredPolicy : public ScoredPolicy, public ReadsHeldKv {
 public:
  std::optional<std::int64_t> bound() const override { return options_.blocks ? options_.rule.bound() : std::nullopt; }
  std::int64_t exact_prefix(std::int64_t n) const override;
  bool wants_held(const PolicyChunk& chunk, int table) const override;
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) final;
  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const override;

 protected:
  // Sets the traits of a policy that decides for each KV head. `traits` has the spec and the positions.
  HeldScoredPolicy(Traits traits, const HeldScoredOptions& options);

  Capabilities capabilities() const override { return ScoredPolicy::capabilities().with<ReadsHeldKv>(this); }

  // Writes the score of each token that the table holds. The table has one lane. `excess`: how many tokens will go.
  virtual void score_held(int table, HeldKv& kv, std::span<double> scores, std::int64_t excess) = 0;
  // Says for each token that a table holds whether it stays when so many of these scores go.
  std::vector<bool> staying(std::span<const double> scores, std::int64_t excess) const;

  const KeepRule& rule() const { return options_.rule; }

 private:
  std::int64_t excess(const PolicyChunk& chunk, std::int64_t held) const;
  void prune(ScoreList& list, const Step& step) final;
  std::int64_t most_kept(std::int64_t seen) const override {
    return options_.blocks ? options_.rule.most_kept(seen) : seen;
  }

  HeldScoredOptions options_;
};

// Returns the position of the newest token that a table holds.
std::int64_t newest_position(HeldKv& kv);

// Returns the Euclidean norm of a key or a value.
double norm_of(std::span<const float> vector);
// Sets norms[r] to norm_of rows[r]. Rows go side by side, since each sum waits for its last step. rows:
// [norms.size()][dim].
void norms_of(std::span<const float> rows, std::span<double> norms);
// Sets products[r] to the sum over i, in order, of rows[r][i] * by[i]. rows: [products.size()][by.size()].
void products_of(std::span<const float> rows, std::span<const double> by, std::span<double> products);

inline constexpr PolicyOption kHeldBudgetOption{"budget", "1024", kBudgetRange,
                                                "tokens kept per head, or their share of the tokens seen, rounded up"};
inline constexpr PolicyOption kHeldEveryOption{
    "every", "64", "0 to 2^40", "while writing, prune when this many tokens are above the budget; 0: never"};
inline constexpr PolicyOption kPromptOption{
    "prompt", "whole", "whole or blocks",
    "prune a prompt when it has been read, or at the end of each of its chunks: memory is then bounded while it is "
    "read"};

}  // namespace kvasir

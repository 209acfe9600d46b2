// The base of policies that prune once, at the end of a prompt, by what the last queries of the prompt attend to: the
// observation window of SnapKV (Li et al., arXiv 2404.14469) and of those built on it.
//
// The tokens of the window are kept; those before it are ranked by a score that is pooled over its neighbours. Only
// running statistics of the window's rows are stored, never the rows. Tokens generated afterwards are all kept. Each
// further prompt (a later message of a conversation) acts again, on what is held at its end. If such a prompt is
// shorter than the window, its rows are all the queries there are; the last `window` tokens held are kept all the same.
//
// Thread-safety: as ScoredPolicy's.
#pragma once

#include "retention/scored.h"

namespace kvasir {

struct PromptWindowOptions {
  Budget budget;
  std::int64_t window = 16;
  std::int64_t kernel = 15;
  bool max_pool = false;
  std::int64_t protect = 0;

  // Returns how many tokens are kept besides the window's, on average over the layers.
  std::int64_t ranked(std::int64_t seen) const { return std::max<std::int64_t>(budget.at(seen) - window, 0); }

  // Reads the options budget, window, kernel, protect and, if the policy has it, pool. Errors: kInvalidArgument for
  // values out of range, an even kernel, a window above the budget or above what is protected leaves of it.
  static Result<PromptWindowOptions> read(const PolicyOptions& given, std::int64_t least_window = 1);
};

class PromptWindowPolicy : public ScoredPolicy, public KnowsPromptEnd {
 public:
  // Unbounded: tokens generated after the prompt are all kept.
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  void begin(const TableLayout& layout) override;
  bool wants(const PolicyChunk& chunk, int row, int) const override {
    return chunk.prompt && Step{chunk, 0, row}.prompt_left() < options_.window;
  }
  std::int64_t exact_prefix(std::int64_t n) const override { return std::max<std::int64_t>(n - options_.window, 0); }
  std::int64_t shared_prefix(std::int64_t n) const override { return exact_prefix(n); }

 protected:
  // Sets the traits of a policy that decides for each KV head, by the mean over its query heads, at the end of prompts.
  // `traits` has the spec, the positions and the values per token.
  PromptWindowPolicy(Traits traits, const PromptWindowOptions& options);

  Capabilities capabilities() const override { return ScoredPolicy::capabilities().with<KnowsPromptEnd>(this); }

  // Takes a row of the window: its mass on the tokens before the window. `rows`: rows so far, this one included. The
  // default adds the mass to column 0.
  virtual void add_row(ScoreList& list, const Step& step, std::int64_t rows, std::span<const double> mass);
  // Called before the first row of a prompt's window, when all values are zero.
  virtual void begin_window(int /*table*/) {}
  // Writes the score of each token before the window, over `rows` rows.
  virtual void rank(ScoreList& list, std::int64_t rows, std::span<double> scores);

  // Keeps the window and `ranked` of the tokens before it: the protected ones, even if they are more, and those of the
  // highest pooled scores.
  void keep(ScoreList& list, int table, std::int64_t ranked);

  const PromptWindowOptions& options() const { return options_; }
  // A class with state of its own adds it to these.
  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(Window); }
  void save_table(int table, ByteWriter& out) const override;
  bool restore_table(int table, ByteReader& in) override;

  std::int64_t rows_observed(int table) const { return windows_[static_cast<std::size_t>(table)].rows; }

 private:
  struct Window {
    std::int64_t rows = 0;  // of the window, observed so far
    TokenIndex prompt_end = 0;
  };

  void score(ScoreList& list, const Step& step, std::span<const double> mass) final;

  PromptWindowOptions options_;
  std::vector<Window> windows_;
};

// Reads the option kernel. Errors: kInvalidArgument if it is out of range or even.
Result<std::int64_t> get_kernel(const PolicyOptions& given);

// Pools over a centred window of width `kernel` (odd), with zeros beyond both ends: the sum divided by `kernel`, or the
// maximum.
std::vector<double> pooled(std::span<const double> scores, std::int64_t kernel, bool max_pool);

inline constexpr PolicyOption kPromptBudgetOption{
    "budget", "1024", kBudgetRange, "tokens kept per head at the end of a prompt, or their share, rounded up"};
inline constexpr PolicyOption kWindowOption{
    "window", "16", "1 to 2^24", "last queries of the prompt that are observed, and kept; counted in budget"};
inline constexpr PolicyOption kKernelOption{"kernel", "15", "1 to 1023, odd", "width of the pooling of scores"};

}  // namespace kvasir

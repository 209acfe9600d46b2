// The base of policies that prune at the end of a prompt, by what the last queries of the prompt attend to: the
// observation window of SnapKV (Li et al., arXiv 2404.14469) and of those built on it.
//
// The tokens of the window are kept; those before it are ranked by a score that is pooled over its neighbours. Only
// running statistics of the window's rows are stored, never the rows. Tokens generated afterwards are all kept, unless
// `every` of them at a time end with a prune by the last of them. With `blocks` each chunk of a prompt is treated as a
// prompt of its own, so that memory is bounded while it is read. Each further prompt (a later message of a
// conversation) acts again, on what is held at its end. If such a prompt is shorter than the window, its rows are all
// the queries there are; the last `window` tokens held are kept all the same.
//
// With `projected` a part of what stays is chosen by what values do behind the output projection (projected_values.h).
//
// A head decides alone, or the heads of a layer decide together when all their scores are known (layer_choice.h).
//
// Thread-safety: as ScoredPolicy's.
#pragma once

#include "retention/layer_choice.h"
#include "retention/scored.h"

namespace kvasir {

struct PromptWindowOptions {
  Budget budget;
  std::int64_t window = 16;
  std::int64_t kernel = 15;
  bool max_pool = false;
  std::int64_t protect = 0;
  bool blocks = false;     // each chunk of a prompt is pruned
  std::int64_t every = 0;  // prunes after so many generated tokens; 0: never
  bool maximum = false;    // a score is the most that any row and query head gives, not their mean
  bool ada = false;        // the heads of a layer share what they keep
  double floor = 0.2;      // share of its part that a head keeps in any case
  std::int64_t chunk = 0;  // a layer keeps whole chunks of so many tokens; 0: single tokens
  bool gate = false;       // ChunkChoice::gate
  bool projected = false;  // half of what stays is chosen by scores alone, the rest by scores and projected values

  bool by_layer() const { return ada || chunk > 0; }

  // Returns how many tokens are kept besides the window's, on average over the layers.
  std::int64_t ranked(std::int64_t seen) const { return std::max<std::int64_t>(budget.at(seen) - window, 0); }

  // Reads the options budget, window, kernel, protect and, if the policy has them, share, floor, chunk, gate, pool,
  // agg, value, prompt and every. Errors: kInvalidArgument for values out of range, an even kernel, a window above the
  // budget or above what is protected leaves of it, for floor without share=ada, gate without chunk, share=ada with
  // chunk or with prompt=blocks, value=wo with chunk.
  static Result<PromptWindowOptions> read(const PolicyOptions& given, std::int64_t least_window = 1);
};

class PromptWindowPolicy : public ScoredPolicy, public KnowsPromptEnd, public ReadsHeldKv {
 public:
  std::optional<std::int64_t> bound() const override;
  void begin(const TableLayout& layout) override;
  bool wants(const PolicyChunk& chunk, int row, int reduction) const override;
  std::int64_t exact_prefix(std::int64_t n) const override;
  std::int64_t shared_prefix(std::int64_t n) const override { return exact_prefix(n); }
  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override;
  void finish_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) final;
  // Used with value=wo only; a policy that reads what is held for its own sake overrides both.
  bool wants_held(const PolicyChunk& chunk, int table) const override;
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) override;
  bool projects_values() const override { return options_.projected; }
  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const override;

 protected:
  // Sets the traits of a policy that decides for each KV head, over its query heads, at the end of prompts.
  // `traits` has the spec, the positions and the values per token.
  PromptWindowPolicy(Traits traits, const PromptWindowOptions& options);

  Capabilities capabilities() const override {
    return ScoredPolicy::capabilities()
        .with<KnowsPromptEnd>(options_.blocks ? nullptr : this)
        .with<ReadsHeldKv>(options_.projected ? this : nullptr);
  }

  // Takes a row of the window: its mass on the tokens before the window. `rows`: rows so far, this one included. The
  // default adds the mass to column 0.
  virtual void add_row(ScoreList& list, const Step& step, std::int64_t rows, std::span<const double> mass);
  // Called before the first row of a window, when all values are zero.
  virtual void begin_window(int /*table*/) {}
  // Writes the score of each token before the window, over `rows` rows.
  virtual void rank(ScoreList& list, std::int64_t rows, std::span<double> scores);

  // Called for each table when a window has ended and all its rows were observed, before most_ranked.
  virtual void prepare(ScoreList& /*list*/, int /*table*/) {}
  // Changes the pooled scores of the tokens before the window.
  virtual void weigh(int /*table*/, std::span<double> /*scores*/) {}
  // Whether a table will drop tokens when this chunk ends.
  bool prunes(const PolicyChunk& chunk, int table) const;
  // Returns how many of the tokens before the window a table keeps that holds `held` tokens.
  virtual std::int64_t most_ranked(int /*table*/, std::int64_t /*held*/, std::int64_t seen) const {
    return options_.ranked(seen);
  }
  // Returns the most tokens that any table holds after a prune, of a budget in tokens.
  virtual std::int64_t most_in_table() const { return options_.budget.tokens; }
  // Whether most_ranked depends on what other tables prepared.
  virtual bool layers_share() const { return false; }

  const PromptWindowOptions& options() const { return options_; }
  // A class with state of its own adds it to these.
  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(Window); }
  void save_table(int table, ByteWriter& out) const override;
  bool restore_table(int table, ByteReader& in) override;

  std::int64_t rows_observed(int table) const { return windows_[static_cast<std::size_t>(table)].rows; }

 private:
  struct Window {
    std::int64_t rows = 0;        // observed so far
    TokenIndex end = 0;           // the index behind its last row
    bool prompt = true;           // its rows are of a prompt
    TokenIndex answer_begin = 0;  // the index behind the last prompt; the same in all tables
  };

  void score(ScoreList& list, const Step& step, std::span<const double> mass) final;
  void prune(ScoreList& list, const Step& step) final;
  std::optional<TokenIndex> window_end(const Step& step) const;
  bool ends_window(const Step& step) const { return window_end(step) == step.token() + 1; }
  std::int64_t earlier(int table) const { return std::max<std::int64_t>(list(table).size() - options_.window, 0); }
  // Returns what a table keeps of the tokens before the window: what is protected, even if that is more than its part.
  std::int64_t part(int table, std::int64_t seen) const;
  std::vector<double> scores(int table);
  ChunkChoice chunk_choice(std::int64_t count) const {
    return {count, options_.chunk, options_.protect, options_.gate};
  }
  void keep_highest(int table, std::int64_t count);
  // The column of the norms of projected values, if there are any: the last one.
  std::span<double> norms(int table) { return list(table).values(list(table).values_per_token() - 1); }
  void decide_for_layer(int first, std::int64_t seen);

  PromptWindowOptions options_;
  std::vector<Window> windows_;
  // The decision for the layer whose tables finish a chunk.
  std::vector<std::int64_t> shares_;  // of its heads
  std::vector<bool> stays_;           // of the tokens before the window, with chunk=
  bool same_ = true;                  // stays_ holds for all heads
  std::int64_t floor_ = 0;            // tokens that a head keeps in any case, with share=ada
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
inline constexpr PolicyOption kPoolOption{"pool", "avg", "avg or max", "how scores are pooled"};
inline constexpr PolicyOption kAggOption{
    "agg", "mean", "mean or max",
    "a token's score: the mean of what the window's rows and query heads give, or the most"};
inline constexpr PolicyOption kBlocksOption{
    "prompt", "whole", "whole or blocks",
    "prune a prompt when it has been read, or at the end of each of its chunks, by the chunk's last queries"};
inline constexpr PolicyOption kWhileWritingOption{
    "every", "0", "0 to 2^40", "while writing, prune after so many tokens by the last of them; 0: never"};
inline constexpr PolicyOption kShareOption{"share", "head", "head or ada",
                                           "each head keeps equally many, or those of highest score in the layer stay"};
inline constexpr PolicyOption kFloorOption{"floor", "0.2", "0 to 1", "ada: part of its equal share that a head keeps"};
inline constexpr PolicyOption kChunkOption{"chunk", "0", "0 to 2^24",
                                           "a layer keeps whole chunks of so many tokens; 0: single tokens"};
inline constexpr PolicyOption kGateOption{"gate", "off", "on or off",
                                          "chunk: chunks whose score lies in few tokens keep their best 4"};

}  // namespace kvasir

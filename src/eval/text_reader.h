// Reads one text or several under a policy, one forward pass at a time, so that several policies can read them side by
// side. Thread-safety: one caller at a time; readers of one model take turns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "kvasir/status.h"
#include "retention/policy.h"
#include "runtime/loaded_model.h"
#include "sequence/sequence_runner.h"

namespace kvasir {

// What a pass gave for one text.
struct ReadPass {
  std::size_t text = 0;
  std::int64_t first = 0;         // first row of `logits`
  int rows = 0;                   // rows of `logits`
  std::span<const float> logits;  // [rows, vocabulary]; valid until the model's next pass
  std::span<const double> kept;   // [rows]: tokens that a row saw, mean over layers and KV heads; valid as `logits`
  double dead_share = 0;          // share of written slots in held pages whose token was dropped, this pass included
  double ms_per_token = 0;        // of the whole pass, over the tokens of all its texts
  bool timed = true;              // false: of a prompt in front of tokens that come one at a time
};

// Figures of one text.
struct ReadFigures {
  std::int64_t tokens_timed = 0;      // that `times` covers: those of timed passes
  StepTimes times;                    // of each pass its tokens' share
  TableColumns::Encodings encodings;  // of the tokens retained now
  std::int64_t kept_max = 0;          // as SequenceRunner's
  std::int64_t seen_least = 0;
  std::uint64_t bytes_peak = 0;  // most bytes of its sequence
};

// Row r is the model's prediction after token r. The rows of a text come in order; the least advanced texts run next.
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual bool done() const = 0;  // every text has been read
  // Later passes give rows from this one on, of whatever text. REQUIRES: !done().
  virtual std::int64_t next_row() const = 0;
  virtual std::int64_t pass_limit() const = 0;  // the next pass gives rows below this one. REQUIRES: !done()
  // Returns a part for each text in the pass; valid until the next one. REQUIRES: !done(). Errors: kResourceExhausted.
  virtual Result<std::span<const ReadPass>> read_pass() = 0;
  virtual ReadFigures figures(std::size_t text) const = 0;
};

struct ReadingOptions {
  int chunk = 0;
  std::int64_t prefill = 0;    // first tokens, which are a prompt in chunks of `chunk`; the others come one at a time.
                               // 0: all tokens as source_of(chunk) says
  std::int64_t first_row = 0;  // passes that end before this row give none
};

// Makes a reader of texts, each in a sequence of its own in `cache`. The texts' tokens must outlive it.
std::unique_ptr<TextReader> make_cached_reader(const std::shared_ptr<LoadedModel>& model,
                                               const std::shared_ptr<KvCache>& cache, const RetentionPolicy& policy,
                                               std::span<const std::vector<TokenId>> texts, ReadingOptions options);

// Policy `recompute`, which keeps no cache: each row comes from a new sequence of the last `size` tokens.
struct RecomputeSpec {
  std::int64_t size = 0;
  std::int64_t stride = 1;     // every stride-th row
  std::int64_t first_row = 0;  // first row given
};
std::unique_ptr<TextReader> make_recompute_reader(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& cache, const RecomputeSpec& spec,
                                                  std::span<const TokenId> tokens);

}  // namespace kvasir

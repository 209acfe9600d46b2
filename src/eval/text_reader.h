// Reads a text under a policy, one forward pass at a time, so that several policies can read it side by side.
// Thread-safety: one caller at a time; readers of one model take turns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/sequence_runner.h"
#include "kv/kv_cache.h"
#include "kvasir/status.h"
#include "retention/policy.h"

namespace kvasir {

struct ReadPass {
  std::int64_t first = 0;         // row that `logits` begin with
  int rows = 0;                   // rows that the pass gave
  std::span<const float> logits;  // [rows, vocabulary]; valid until the model's next pass
  double kept = 0;                // tokens that the pass saw, mean over layers and KV heads
  double dead_share = 0;          // of the slots written, of those held: share that is dead, the pass's own included
  double ms_per_token = 0;
};

// Row r is what the model says behind token r. Rows come in order.
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual bool done() const = 0;
  virtual std::int64_t next_row() const = 0;    // no row before this one comes any more
  virtual std::int64_t pass_limit() const = 0;  // the next pass gives no row from this one on
  // REQUIRES: !done(). Errors: kResourceExhausted.
  virtual Result<ReadPass> read_pass() = 0;

  virtual std::int64_t tokens_timed() const = 0;  // behind times()
  virtual StepTimes times() const = 0;
  virtual std::int64_t kept_max() const = 0;
  virtual std::int64_t seen_least() const = 0;  // as SequenceRunner's
};

// Every row of the text, from a sequence in `cache`. `tokens` outlive the reader.
std::unique_ptr<TextReader> make_cached_reader(const std::shared_ptr<LoadedModel>& model,
                                               const std::shared_ptr<KvCache>& cache, const RetentionPolicy& policy,
                                               std::span<const TokenId> tokens, int chunk);

// The policy `recompute`, which keeps no cache: each row from a new sequence of the last `size` tokens.
struct RecomputeSpec {
  std::int64_t size = 0;
  std::int64_t stride = 1;     // every stride-th row
  std::int64_t first_row = 0;  // that is given
};
std::unique_ptr<TextReader> make_recompute_reader(const std::shared_ptr<LoadedModel>& model,
                                                  const std::shared_ptr<KvCache>& cache, const RecomputeSpec& spec,
                                                  std::span<const TokenId> tokens);

}  // namespace kvasir

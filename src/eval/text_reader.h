// Reads a text under a policy, one forward pass at a time, so that several policies can read it in parallel.
// Thread-safety: one caller at a time; readers of one model take turns.
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

struct ReadPass {
  std::int64_t first = 0;         // first row of `logits`
  int rows = 0;                   // rows of `logits`
  std::span<const float> logits;  // [rows, vocabulary]; valid until the model's next pass
  double kept = 0;                // tokens that the pass saw, mean over layers and KV heads
  double dead_share = 0;          // share of written slots in held pages whose token was dropped, this pass included
  double ms_per_token = 0;
};

// Row r is the model's prediction after token r. Rows come in order.
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual bool done() const = 0;
  virtual std::int64_t next_row() const = 0;    // later passes give rows from this one on
  virtual std::int64_t pass_limit() const = 0;  // the next pass gives rows below this one
  // REQUIRES: !done(). Errors: kResourceExhausted.
  virtual Result<ReadPass> read_pass() = 0;

  virtual std::int64_t tokens_timed() const = 0;  // tokens that times() covers
  virtual StepTimes times() const = 0;
  // Returns the encodings of the tokens retained now.
  virtual TableColumns::Encodings encodings() const { return {}; }
  virtual std::int64_t kept_max() const = 0;
  virtual std::int64_t seen_least() const = 0;  // as SequenceRunner's
};

// Makes a reader that gives every row of the text, from one sequence in `cache`. `tokens` must outlive it. `prefill`:
// first tokens, which are a prompt in chunks of `chunk`; the others come one at a time. 0: all tokens as
// source_of(chunk) says.
std::unique_ptr<TextReader> make_cached_reader(const std::shared_ptr<LoadedModel>& model,
                                               const std::shared_ptr<KvCache>& cache, const RetentionPolicy& policy,
                                               std::span<const TokenId> tokens, int chunk, std::int64_t prefill = 0);

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

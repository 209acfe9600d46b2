// Reads a text under a policy and passes the attention of every row to an observer, for recording and inspection.
// Thread-safety: one reading at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/scoring.h"
#include "eval/seen_tokens.h"
#include "kv/page_table.h"
#include "kvasir/status.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct ObservedTextOptions {
  std::string policy = "full";
  std::int64_t prefill = 0;  // the first tokens are a prompt; the others are generated, one at a time
  int chunk = 0;             // prompt tokens per pass; 0: the policy's default, otherwise the engine's
};

// How the text was read, and what the policy retains at the end.
struct ObservedText {
  std::string policy;
  std::string codec;
  int chunk = 0;                // as used; 0 without a prompt
  std::int64_t kept_max = 0;    // most tokens a forward pass saw
  std::int64_t seen_least = 0;  // tokens seen by the last pass, in the table with the fewest
  bool by_head = false;         // the policy decides for each KV head
  std::vector<std::vector<std::vector<TokenIndex>>> final;  // [layer][1 or KV heads]: retained at the end, ascending
};

// One row of one layer: the softmax weights of a token's query heads. No weight is NaN or infinite.
class ObservedRow {
 public:
  ObservedRow(SeenTokens* seen, const ObservedAttention* attention, int row)
      : seen_(*seen), attention_(*attention), row_(row) {}

  int layer() const { return attention_.layer; }
  TokenIndex query() const { return seen_.first() + attention_.first_row + row_; }
  std::span<const float> weights(int head) const { return attention_.of(row_, head); }
  // Returns the tokens that the weights belong to, ascending, the query last; the same for all query heads of a KV
  // head. Valid until the next call.
  std::span<const TokenIndex> ids(int head) const { return seen_.of(layer(), head, attention_.first_row + row_); }

 private:
  SeenTokens& seen_;
  const ObservedAttention& attention_;
  int row_;
};

class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // Called for the rows of a layer in order of their queries; rows of different layers alternate. An error ends the
  // reading.
  virtual Status observe(const ObservedRow& row) = 0;
  // Keys and values of the text; null: not wanted.
  virtual ReadsKv* kv() { return nullptr; }
  // Queries of rows from token `first` on (AttentionObserver::observe_queries).
  virtual bool wants_queries() const { return false; }
  virtual void observe_queries(TokenIndex /*first*/, const ObservedQueries& /*queries*/) {}
};

// Checks whether a text of `tokens` tokens can be read with these options. Errors: kInvalidArgument.
Status check_observed_text(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options);

// Errors: those of check_observed_text and of the observer; kDataLoss if an attention weight is NaN or infinite;
// kResourceExhausted, kCancelled.
Result<ObservedText> read_observed(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                   const ObservedTextOptions& options, RowObserver& observer, const Progress& progress);

}  // namespace kvasir

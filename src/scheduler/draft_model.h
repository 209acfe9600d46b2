// A small model that drafts tokens for the texts of another (EngineOptions::draft_model): its cache, and what of each
// text that cache holds. The cache shares the budget of the other model's, and gives way to it: any of its texts may be
// dropped, and is then read again.
// Thread-safety: one caller at a time, the one that runs passes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "planning/memory_plan.h"
#include "sequence/step.h"

namespace kvasir {

// The most tokens of a text that a draft model keeps: the first and the newest.
inline constexpr std::int64_t kMostDraftTokens = 2048;
// Tokens of a text that the draft model reads between two passes of the other model, at most.
inline constexpr int kDraftRows = 256;

// Returns the policy of a draft model with this trained context: all tokens, then streaming.
std::unique_ptr<RetentionPolicy> draft_policy(std::int64_t context);
// Plans what a draft model's cache takes for `texts` texts of `tokens` tokens, at most.
KvMemory plan_draft_texts(const KvCacheShape& shape, std::int64_t context, std::int64_t tokens, int texts);

class DraftText;

class DraftModel {
 public:
  // `cache`: of the model that it drafts for, within whose budget its own cache lies. Null if not even one page of each
  // of its lanes fits there.
  static std::shared_ptr<DraftModel> create(std::shared_ptr<LoadedModel> model, const std::shared_ptr<KvCache>& cache);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Runs one pass over texts of this model, if it fits the free memory. Returns whether it has run.
  bool run(std::span<const StepRequest> requests, std::span<StepResult> results);
  // Drops all texts.
  void drop_all();
  // Returns the bytes that all texts hold.
  std::uint64_t bytes() const;
  const KvCache& cache() const { return *cache_; }

 private:
  friend class DraftText;
  DraftModel(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache);
  bool give_back();

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  Step step_;
  DraftView view_;                 // what the policy keeps
  std::vector<DraftText*> texts_;  // the one that was used last stands last
  bool running_ = false;           // a pass: nothing is given back meanwhile
};

// What a draft model holds of one text. The object follows that text: first it reads the tokens that it lacks, then it
// runs drafts, and once the text goes on those that did not come true are taken back.
class DraftText {
 public:
  explicit DraftText(std::shared_ptr<DraftModel> model);
  ~DraftText();
  DraftText(const DraftText&) = delete;
  DraftText& operator=(const DraftText&) = delete;

  // Takes back what is not of the text. `newest`: its newest tokens, oldest first; `total`: the number of all.
  void settle(std::span<const TokenId> newest, std::int64_t total);
  // Settles, and prepares to read on up to `next`, the token behind the text.
  void follow(std::span<const TokenId> newest, std::int64_t total, TokenId next);

  // Returns the number of tokens to read before the first draft.
  std::int64_t left() const { return std::ssize(unread_); }
  // Returns the pass that reads on. Valid until the text changes. REQUIRES: left() > 0.
  Sequence::Input reading(int most_rows) const;
  void note_read(int tokens);
  // Returns the pass that runs `draft` for the logits behind it. REQUIRES: left() is 0 since follow().
  Sequence::Input drafting(const TokenId& draft) const;
  void note_run(TokenId draft) { ahead_.push_back(draft); }

  // Null until follow(), and after the text was dropped.
  Sequence* sequence() { return sequence_.get(); }
  std::uint64_t bytes() const { return sequence_ != nullptr ? sequence_->bytes() : 0; }

 private:
  friend class DraftModel;
  void drop();

  std::shared_ptr<DraftModel> model_;
  std::unique_ptr<Sequence> sequence_;
  std::int64_t settled_ = 0;     // index behind the newest token of the text that it holds
  TokenId newest_ = kNoToken;    // that token
  std::vector<TokenId> unread_;  // behind it
  std::vector<TokenId> ahead_;   // drafts that have run
};

}  // namespace kvasir

// Between the model and a policy that decides by table: reduces the attention observed to masses, and has the plans
// executed.
// Thread-safety: one caller at a time.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "kv/policy.h"
#include "model/config.h"
#include "model/transformer.h"

namespace kvasir {

class PolicyDriver final : public AttentionObserver {
 public:
  // All outlive the object. Calls policy->begin unless `begun` (a clone of a policy that ran before).
  PolicyDriver(RetentionPolicy* policy, const ModelConfig& config, ThreadPool* threads, bool begun);

  // Whoever else wants to hear the attention; nullptr: nobody.
  void begin_pass(const PolicyPass& pass, AttentionObserver* tap);
  // Whether the model has to hand over its attention.
  bool listens() const { return tap_ != nullptr || policy_listens_; }
  void observe(const ObservedAttention& attention) override;

  // Moves the slots of one table of a sequence.
  using TableMover = std::function<void(const LaneGroup& table, std::span<const LaneGroup::SlotCopy>)>;
  // Has the policy decide, table by table, and executes it.
  void end_pass(KvSequence& sequence, const TableMover& mover);

  // Seconds spent on what the policy was shown, so far: it runs within the model's forward pass.
  double seconds() const { return seconds_; }

  // The least id that any table has dropped; nothing if none has.
  std::optional<TokenIndex> first_dropped() const { return first_dropped_; }
  void set_first_dropped(std::optional<TokenIndex> id) { first_dropped_ = id; }

 private:
  RetentionPolicy& policy_;
  ThreadPool& threads_;
  TableLayout layout_;
  PolicyPass pass_;
  AttentionObserver* tap_ = nullptr;
  bool policy_listens_ = false;  // some row of the pass matters to it
  std::vector<double> mass_;
  KeepPlan plan_;
  std::optional<TokenIndex> first_dropped_;
  double seconds_ = 0;
};

}  // namespace kvasir

#include "engine/policy_driver.h"

#include <chrono>

#include "kv/attention_mass.h"

namespace kvasir {

PolicyDriver::PolicyDriver(RetentionPolicy* policy, const ModelConfig& config, ThreadPool* threads, bool begun)
    : policy_(*policy), threads_(*threads) {
  layout_.layers = policy->scope() == PolicyScope::kSequence ? 1 : config.layers;
  layout_.per_layer = policy->scope() == PolicyScope::kHead ? config.kv_heads : 1;
  layout_.heads = config.heads / layout_.per_layer;
  if (!begun) policy->begin(layout_);
}

void PolicyDriver::begin_pass(const PolicyPass& pass, AttentionObserver* tap) {
  pass_ = pass;
  tap_ = tap;
  policy_listens_ = false;
  for (int row = 0; row < pass.rows && policy_.reduction() != MassReduction::kNone; ++row)
    policy_listens_ = policy_listens_ || policy_.wants_row(pass, row);
}

void PolicyDriver::observe(const ObservedAttention& attention) {
  if (tap_ != nullptr) tap_->observe(attention);
  if (!policy_listens_) return;
  const auto start = std::chrono::steady_clock::now();
  const int tables = layout_.per_layer;
  std::size_t most = 0;
  for (const std::span<const float> weights : attention.weights) most = std::max(most, weights.size());
  mass_.resize(static_cast<std::size_t>(attention.rows * tables) * most);
  const auto mass_of = [&](int row, int table) {
    return std::span(mass_).subspan(static_cast<std::size_t>(row * tables + table) * most,
                                    attention.of(row, table * layout_.heads).size());
  };
  threads_.parallel_for(attention.rows * tables, [&](int index) {
    const int row = index / tables;
    const int table = index % tables;
    if (!policy_.wants_row(pass_, attention.first_row + row)) return;
    const float* heads[kMaxHeads];
    for (int h = 0; h < layout_.heads; ++h) heads[h] = attention.of(row, table * layout_.heads + h).data();
    const std::span<double> mass = mass_of(row, table);
    reduce_mass({heads, static_cast<std::size_t>(layout_.heads)}, static_cast<int>(mass.size()), policy_.reduction(),
                mass);
  });
  for (int table = 0; table < tables; ++table)
    for (int row = 0; row < attention.rows; ++row)
      if (policy_.wants_row(pass_, attention.first_row + row))
        policy_.observe(pass_, attention.layer * tables + table, attention.first_row + row, mass_of(row, table));
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void PolicyDriver::end_pass(KvSequence& sequence, const TableMover& mover) {
  const auto decide = [&](const auto& ask) {
    for (int t = 0; t < sequence.tables(); ++t) {
      plan_.clear();
      ask(t);
      if (plan_.empty()) continue;
      if (!plan_.drop.empty() && plan_.drop.front() < first_dropped_.value_or(plan_.drop.front() + 1))
        first_dropped_ = plan_.drop.front();
      LaneGroup& table = sequence.table(t);
      table.apply(plan_, [&](std::span<const LaneGroup::SlotCopy> copies) { mover(table, copies); });
    }
  };
  decide([&](int table) { policy_.end_pass(pass_, table, plan_); });
  decide([&](int table) { policy_.finish_pass(pass_, table, plan_); });
}

}  // namespace kvasir

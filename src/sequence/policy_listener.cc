#include "sequence/policy_listener.h"

#include <chrono>

namespace kvasir {

PolicyListener::PolicyListener(RetentionPolicy* policy, const KvCacheShape& shape)
    : shape_(shape),
      scope_(policy->traits().scope),
      tables_per_layer_(table_layout(shape, scope_).per_layer),
      masses_(policy->observes_masses()),
      inputs_(policy) {}

void PolicyListener::begin_chunk(const PolicyChunk& chunk) {
  chunk_ = chunk;
  inputs_.begin(shape_, chunk);
}

AttentionListener* PolicyListener::begin_pass(int first, int rows) {
  first_ = first;
  wants_masses_ = false;
  for (int row = 0; row < rows && masses_ != nullptr && !wants_masses_; ++row) wants_masses_ = wants_row(row);
  wants_queries_ = inputs_.wants_queries(chunk_, first, rows);
  return wants_masses_ || wants_queries_ || tap_ != nullptr ? this : nullptr;
}

void PolicyListener::end_chunk(const KvSequence& tables, const PageStore& store) {
  inputs_.finish(shape_, chunk_, tables, store, kv_tap_);
}

std::span<const MassReduction> PolicyListener::reductions() const {
  if (!wants_masses_) return {};
  return masses_->reductions();
}

void PolicyListener::hear_queries(const ObservedQueries& queries) {
  if (tap_ != nullptr && tap_->wants_queries()) tap_->observe_queries(queries);
  const int head = queries.layer * shape_.query_heads + queries.head;
  for (int row = 0; row < queries.rows; ++row)
    if (inputs_.wants_queries(chunk_, first_ + queries.first_row + row)) inputs_.add(head, queries.of(row));
}

void PolicyListener::hear_masses(const ObservedMasses& masses) {
  const auto start = std::chrono::steady_clock::now();
  const int table = masses.layer * tables_per_layer_ + masses.table;
  masses_->observe(chunk_, table, first_ + masses.row, masses.masses);
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace kvasir

#include "offload/demotion.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

PageFormat demoted_format(const Demotion& demotion, const KvCacheShape& shape) {
  PageFormat format = shape.page;
  if (demotion.type) format.key = format.value = *demotion.type;
  return format;
}

// The layout of a table's demoted pages, but for classes and file.
DemotedPages::Layout demoted_layout(const Demotion& demotion, PolicyScope scope, const KvCacheShape& shape) {
  DemotedPages::Layout layout;
  layout.lanes = shape.lanes_per_table(scope);
  layout.format = demoted_format(demotion, shape);
  const std::uint64_t column =
      static_cast<std::uint64_t>(shape.lanes()) * (layout.format.bytes() + PagePool::kPageOverhead);
  layout.most_in_memory = demotion.type ? static_cast<std::int64_t>(demotion.memory / column) : 0;
  layout.most_in_memory = std::max<std::int64_t>(layout.most_in_memory, 1);
  return layout;
}

}  // namespace

Status check_demotion_file(const RetentionPolicy& policy, const DemotionFile* file) {
  if (!policy.traits().demotion || !policy.traits().demotion->file || file != nullptr) return {};
  return invalid_argument(
             "policy '{}' demotes to a file, but there is no folder for one; give one, or demote to memory (q4)",
             policy.traits().spec)
      .about({"demote_dir"});
}

Result<std::unique_ptr<SequenceDemotion>> SequenceDemotion::create(const RetentionPolicy& policy, KvCache* cache,
                                                                   const KvCacheShape& shape, DemotionFile* file) {
  const PolicyTraits& traits = policy.traits();
  if (!traits.demotion) return std::unique_ptr<SequenceDemotion>();
  KVASIR_RETURN_IF_ERROR(check_demotion_file(policy, file));
  std::unique_ptr<SequenceDemotion> demotion(new SequenceDemotion(cache, *traits.demotion));
  DemotedPages::Layout layout = demoted_layout(*traits.demotion, traits.scope, shape);
  KVASIR_ASSIGN_OR_RETURN(layout.classes, cache->pool().classes_of(layout.format));
  if (traits.demotion->file) layout.file = file;
  demotion->tables_.reserve(static_cast<std::size_t>(shape.tables(traits.scope)));
  for (int t = 0; t < shape.tables(traits.scope); ++t) demotion->tables_.emplace_back(&cache->pool(), layout);
  demotion->add_recall();
  return demotion;
}

void SequenceDemotion::add_recall() {
  const KvCacheShape& shape = cache_->shape();
  recall_ = std::make_unique<Recall>(&cache_->pool(), tables_, shape.layers, shape.kv_heads, demotion_.recall);
}

std::uint64_t SequenceDemotion::most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape,
                                           std::int64_t tokens) {
  const PolicyTraits& traits = policy.traits();
  if (!traits.demotion) return 0;
  DemotedPages::Layout layout = demoted_layout(*traits.demotion, traits.scope, shape);
  // Only whether there is one matters.
  DemotionFile any(nullptr, 0);
  if (traits.demotion->file) layout.file = &any;
  return static_cast<std::uint64_t>(shape.tables(traits.scope)) * DemotedPages::bytes_for(layout, tokens) +
         Recall::bytes_for(layout, shape.lanes(), shape.kv_heads, traits.demotion->recall);
}

std::uint64_t SequenceDemotion::bytes() const {
  std::uint64_t sum = recall_->bytes();
  for (const DemotedPages& table : tables_) sum += table.bytes();
  return sum;
}

std::uint64_t SequenceDemotion::own_bytes() const {
  std::uint64_t sum = recall_->bytes();
  for (const DemotedPages& table : tables_) sum += table.own_bytes();
  return sum;
}

std::uint64_t SequenceDemotion::may_take(const KvSequence& tables, int rows) const {
  const DemotedPages::Layout& layout = tables_.front().layout();
  const KvCacheShape& shape = cache_->shape();
  std::uint64_t sum =
      recall_->bytes() == 0 ? Recall::bytes_for(layout, shape.lanes(), shape.kv_heads, demotion_.recall) : 0;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const std::int64_t most = tables.table(static_cast<int>(t)).length() + rows;
    const std::uint64_t then = DemotedPages::bytes_for(layout, tables_[t].tokens() + most);
    // What it has, not what it might have: a fork may have sent to the file what this would send first.
    sum += then - std::min(then, tables_[t].bytes());
  }
  return sum;
}

void SequenceDemotion::take(int table, const PageTable& from, std::span<const IndexRange> ranges) {
  KVASIR_CHECK(recall_->reserve().ok());
  DemotedPages& pages = tables_[static_cast<std::size_t>(table)];
  if (pages.status().ok()) pages.take(from, ranges);
}

OffloadedPages* SequenceDemotion::begin_pass(TokenIndex row) {
  if (empty()) return nullptr;
  recall_->begin_pass(row);
  return recall_.get();
}

Status SequenceDemotion::status() const {
  KVASIR_RETURN_IF_ERROR(recall_->status());
  for (const DemotedPages& table : tables_) KVASIR_RETURN_IF_ERROR(table.status());
  return {};
}

bool SequenceDemotion::empty() const {
  return std::ranges::all_of(tables_, [](const DemotedPages& table) { return table.tokens() == 0; });
}

SequenceDemotion::Report SequenceDemotion::report() const {
  Report report;
  for (const DemotedPages& table : tables_) {
    report.tokens += static_cast<double>(table.tokens()) / static_cast<double>(tables_.size());
    report.file_bytes += table.file_bytes();
    report.seconds_waited += table.seconds_writing();
  }
  report.bytes = bytes();
  report.recalled = recall_->counts().recalled;
  report.fetched = recall_->counts().fetched;
  report.seconds_waited += recall_->counts().seconds_waited;
  return report;
}

std::uint64_t SequenceDemotion::fork_bytes() const {
  std::uint64_t sum = recall_->bytes();
  for (const DemotedPages& table : tables_) sum += table.fork_bytes();
  return sum;
}

Result<std::unique_ptr<SequenceDemotion>> SequenceDemotion::fork() const {
  KVASIR_RETURN_IF_ERROR(status());
  static_cast<void>(cache_->budget().make_available(fork_bytes()));
  std::unique_ptr<SequenceDemotion> copy(new SequenceDemotion(cache_, demotion_));
  copy->tables_.reserve(tables_.size());
  for (const DemotedPages& table : tables_) {
    KVASIR_ASSIGN_OR_RETURN(DemotedPages twin, table.fork());
    copy->tables_.push_back(std::move(twin));
  }
  copy->add_recall();
  if (recall_->bytes() > 0) KVASIR_RETURN_IF_ERROR(copy->recall_->reserve());
  return copy;
}

}  // namespace kvasir

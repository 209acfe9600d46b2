#include "sequence/kv_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace kvasir {

KvReport kv_report(const Sequence& sequence) {
  const KvSequence& tables = sequence.tables();
  const KvCache& cache = *sequence.cache();
  KvReport report;
  report.policy = sequence.policy().traits().spec;
  report.codec = codec_name(tables.codec());
  report.seen = tables.next_index();
  // Offloaded tokens count as kept.
  const SequenceDemotion* const demotion = sequence.offloaded().demotion();
  const FollowerHeads* const followers = sequence.offloaded().followers();
  const bool offloads = followers != nullptr;
  report.kept = std::llround(offloads ? tables.mean_length() : tables.mean_stored());
  report.kept_least = std::numeric_limits<std::int64_t>::max();
  for (int t = 0; t < tables.governed_tables(); ++t) {
    const std::int64_t kept = offloads ? tables.table(t).length() : tables.table(t).tokens().stored();
    report.kept_least = std::min(report.kept_least, kept);
    report.kept_most = std::max(report.kept_most, kept);
  }
  const KvCacheShape& shape = sequence.shape();
  for (std::size_t w = 0; w < shape.windows.size(); ++w) {
    const PageTable& table = tables.table(tables.governed_tables() + static_cast<int>(w));
    report.windows.push_back(
        {shape.windows[w].layers, shape.windows[w].window, table.tokens().stored(), table.memory().page_bytes()});
  }
  for (const StateGroup& group : shape.states)
    report.states.push_back(
        {group.layers, tables.states().bytes() > 0 ? group.bytes * static_cast<std::uint64_t>(group.layers) : 0});
  report.kept_max = sequence.counters().kept_max;
  report.repeated = sequence.repeated_rows();
  if (const SequenceSelector* selector = sequence.reads().selector())
    if (const auto read = selector->tokens_read()) report.read = std::llround(*read);
  if (demotion != nullptr) {
    const SequenceDemotion::Report demoted = demotion->report();
    report.demotes = true;
    report.demoted = std::llround(demoted.tokens);
    report.demoted_bytes = demoted.bytes;
    report.demoted_file_bytes = demoted.file_bytes;
    report.recalled = demoted.recalled;
    report.fetched = demoted.fetched;
    report.recall_seconds = demoted.seconds_waited;
  }
  if (offloads) {
    const FollowerHeads::Report offloaded = followers->report(tables);
    report.offloads = true;
    report.hot_bytes = offloaded.hot_bytes;
    report.cold_bytes = offloaded.cold_bytes;
    report.write_wait_seconds = offloaded.write_wait_seconds;
    report.fetched_chosen = offloaded.chosen;
    report.fetched_prompts = offloaded.prompts;
  }
  report.dead_share = dead_share(tables);
  const TableColumns::Encodings encoded = encodings(tables);
  report.encodings_mean = encoded.mean();
  report.encodings_max = encoded.most;
  report.bytes = sequence.bytes();
  report.bytes_peak = sequence.bytes_peak();
  report.budget = cache.budget().capacity();
  return report;
}

std::uint64_t bytes_freed_without(const Sequence& sequence, PageOwner beside) {
  const PagePool& pool = sequence.cache()->pool();
  const KvSequence& tables = sequence.tables();
  const Sequence* const part = sequence.part();  // goes with it
  std::uint64_t bytes = 0;
  for (int t = 0; t < tables.tables(); ++t) {
    const PageTable& table = tables.table(t);
    std::set<PageId> of_part;
    if (part != nullptr)
      for (const std::uint32_t column : part->tables().table(t).columns().in_order())
        for (const PageId page : part->tables().table(t).pages().of(column)) of_part.insert(page);
    const auto is_freed = [&](PageId page) {
      const std::uint32_t cached = beside != PageOwner::kNobody ? pool.cached_references(page) : 0;
      return pool.references(page) - cached == (of_part.contains(page) ? 2 : 1);
    };
    for (const std::uint32_t column : table.columns().in_order())
      for (const PageId page : table.pages().of(column))
        if (is_freed(page)) bytes += pool.page_cost(page_class(page));
  }
  return bytes + sequence.own_bytes_beside_pages();
}

}  // namespace kvasir

#include "sequence/sequence_state.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

// Removes the tokens of `hole` from ascending ranges.
void cut(std::vector<IndexRange>& ranges, IndexRange hole) {
  if (hole.empty()) return;
  std::vector<IndexRange> left;
  for (const IndexRange& range : ranges)
    for (const IndexRange part : {IndexRange{range.begin, std::min(range.end, hole.begin)},
                                  IndexRange{std::max(range.begin, hole.end), range.end}})
      if (!part.empty()) left.push_back(part);
  ranges = std::move(left);
}

// Returns whether the frames of a table of ranges are exactly these, and perhaps an empty one for tokens to come.
bool frames_are(const PageTable& table, std::span<const IndexRange> ranges) {
  std::size_t f = 0;
  for (const IndexRange& range : ranges) {
    if (range.empty()) continue;
    if (f == table.frames().size() || table.frames()[f].tokens != range.size() ||
        table.tokens().first_token(f) != range.begin)
      return false;
    ++f;
  }
  return f == table.frames().size() || table.frames()[f].tokens == 0;
}

}  // namespace

bool policy_agrees(const Sequence& sequence) {
  const KvSequence& tables = sequence.tables();
  const RetentionPolicy& policy = sequence.policy();
  if (policy.seen() != tables.next_index()) return false;
  std::vector<IndexRange> ranges;
  for (int t = 0; t < tables.tables(); ++t) {
    const PageTable& table = tables.table(t);
    if (table.next_index() != tables.next_index()) return false;
    for (int run = 0; run < table.layout().runs(); ++run) {
      ranges.clear();
      if (t < tables.governed_tables()) {
        policy.retained(t, run, ranges);
      } else if (tables.next_index() > 0) {
        ranges.push_back({0, tables.next_index()});  // what is beyond the window was given back
      }
      std::int64_t retained = 0;
      for (const IndexRange& range : ranges) retained += range.size();
      if (table.layout().runs() == 1 && retained != table.length()) return false;
      if (!table.layout().lists && !frames_are(table, ranges)) return false;
      cut(ranges, table.tokens().given_back);
      auto range = ranges.begin();
      TokenIndex at = range != ranges.end() ? range->begin : 0;
      for (const PageTable::Frame& frame : table.frames()) {
        if (frame.run != run) continue;
        for (const PageEntry& entry : table.entries_of(frame))
          for (SlotMask left = entry.live; left != 0; left &= left - 1) {
            if (range == ranges.end() || table.columns().index(entry.column, std::countr_zero(left)) != at)
              return false;
            if (++at == range->end && ++range != ranges.end()) at = range->begin;
          }
      }
      if (range != ranges.end()) return false;
    }
  }
  return true;
}

void write_sequence(const Sequence& sequence, ByteWriter& out) {
  for (int t = 0; t < sequence.tables().tables(); ++t) sequence.tables().table(t).save(out);
  sequence.policy().save(out);
  const Sequence::Counters& counters = sequence.counters();
  out.put(counters.kept_max);
  out.put(counters.seen_least);
  out.put(counters.first_dropped.value_or(-1));
}

Status read_sequence(ByteReader& in, Sequence* sequence) {
  for (int t = 0; t < sequence->tables().tables(); ++t)
    KVASIR_RETURN_IF_ERROR(sequence->mutable_tables().table(t).restore(in));
  if (KvSequence& tables = sequence->mutable_tables(); tables.next_index() > 0) {
    static_cast<void>(sequence->cache()->budget().make_available(sequence->shape().state_bytes()));
    KVASIR_RETURN_IF_ERROR(tables.states().take());
  }
  KVASIR_RETURN_IF_ERROR(sequence->mutable_policy().restore(in));
  Sequence::Counters counters;
  in.get(counters.kept_max);
  in.get(counters.seen_least);
  TokenIndex first_dropped = -1;
  in.get(first_dropped);
  if (!in.ok()) return data_loss("its counters are cut short");
  if (first_dropped >= 0) counters.first_dropped = first_dropped;
  return sequence->resume(counters);
}

std::vector<PageId> pages_in_order(const Sequence& sequence) {
  std::vector<PageId> pages;
  for (int t = 0; t < sequence.tables().tables(); ++t) {
    const PageTable& table = sequence.tables().table(t);
    for (const std::uint32_t column : table.columns().in_order())
      pages.insert(pages.end(), table.pages().of(column).begin(), table.pages().of(column).end());
  }
  return pages;
}

}  // namespace kvasir

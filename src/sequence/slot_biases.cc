#include "sequence/slot_biases.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvasir {
namespace {

// Most entries that a pass may add besides those of the pages it opens.
constexpr std::int64_t kMoreEntries = 2;

std::uint64_t bytes_of(const KvCacheShape& shape, PolicyScope scope, std::int64_t entries) {
  const auto slots = static_cast<std::uint64_t>(shape.page.slots);
  const std::uint64_t entry = sizeof(float) * slots * static_cast<std::uint64_t>(shape.lanes_per_table(scope));
  return static_cast<std::uint64_t>(entries + kMoreEntries) * (entry + sizeof(const float*));
}

// Returns the bytes of the biases of one table's tokens in one lane, while they are laid out.
std::uint64_t bytes_of_tokens(const KvCacheShape& shape, std::int64_t entries) {
  return static_cast<std::uint64_t>(entries + kMoreEntries) * static_cast<std::uint64_t>(shape.page.slots) *
         sizeof(float);
}

std::int64_t entries_of(const PageTable& table) {
  std::int64_t entries = 0;
  for (const PageTable::Frame& frame : table.frames()) entries += std::ssize(table.entries_of(frame));
  return entries;
}

}  // namespace

std::uint64_t SlotBiases::most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t entries) {
  if (policy.as<WeighsSlots>() == nullptr) return 0;
  const auto tables = static_cast<std::uint64_t>(shape.tables(policy.traits().scope));
  return tables * (sizeof(Table) + bytes_of(shape, policy.traits().scope, entries)) + bytes_of_tokens(shape, entries);
}

std::uint64_t SlotBiases::bytes_for(const KvCacheShape& shape, const KvSequence& tables, int rows) const {
  if (policy_ == nullptr) return 0;
  const std::int64_t opened = (rows + shape.page.slots - 1) / shape.page.slots;
  std::uint64_t bytes = 0;
  std::int64_t most = 0;
  for (int t = 0; t < tables.governed_tables(); ++t) {
    const std::int64_t entries = entries_of(tables.table(t)) + opened;
    bytes += sizeof(Table) + bytes_of(shape, tables.scope(), entries);
    most = std::max(most, entries);
  }
  return bytes + bytes_of_tokens(shape, most);
}

void SlotBiases::describe(const KvSequence& tables, int t, TokenIndex first, BatchTable* out) {
  if (policy_ == nullptr) return;
  const PageTable& table = tables.table(t);
  const auto lanes = static_cast<std::size_t>(table.pages().lanes()),
             slots = static_cast<std::size_t>(table.pages().format().slots);
  const auto entries = static_cast<std::size_t>(entries_of(table));
  const std::int64_t tokens = table.length() - (table.next_index() - first);  // before the chunk
  KVASIR_CHECK(table.layout().lists && tokens >= 0);
  std::vector<float> of_tokens(static_cast<std::size_t>(tokens));
  Table own;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (!policy_->biases(t, static_cast<int>(lane), of_tokens)) continue;
    own.floats.resize(entries * lanes * slots);
    own.of_entry.resize(entries);
    std::size_t entry = 0, token = 0;
    for (const PageTable::Frame& frame : table.frames())
      for (const PageEntry& e : table.entries_of(frame)) {
        float* const of_entry = own.floats.data() + entry * lanes * slots;
        for (SlotMask live = e.live; live != 0 && token < of_tokens.size(); live &= live - 1) {
          const float bias = of_tokens[token++];
          of_entry[lane * slots + static_cast<std::size_t>(std::countr_zero(live))] = bias;
          if (bias != 0) own.of_entry[entry] = of_entry;
        }
        ++entry;
      }
    KVASIR_CHECK(token == of_tokens.size());
  }
  if (own.floats.empty()) return;
  tables_.reserve(static_cast<std::size_t>(tables.governed_tables()));
  tables_.resize(static_cast<std::size_t>(t) + 1);
  out->biases = own.of_entry;
  tables_[static_cast<std::size_t>(t)] = std::move(own);
}

}  // namespace kvasir

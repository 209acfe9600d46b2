// The cold file of following heads: writes a block for each cluster and column, and reads it back. A block holds, token
// by token, the rows of all tables of the cluster.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "offload/follower_heads.h"

namespace kvasir {

void FollowerHeads::write_columns(Cluster& cluster, const KvSequence& tables, std::int64_t first, std::int64_t end) {
  const auto slots = static_cast<std::size_t>(plan_.format.slots);
  const std::size_t row = plan_.format.row_bytes();
  const std::size_t count = cluster.tables.size();
  PageStore* store = cache_->pool().store();
  std::vector<std::byte> rows(slots * row);
  for (std::int64_t column = first; column < end; ++column) {
    std::vector<std::byte> bytes(slots * row * count);
    for (std::size_t t = 0; t < count; ++t) {
      const PageTable& table = tables.table(cluster.tables[t]);
      const PageEntry& entry =
          table.entries_of(table.frames().front())[static_cast<std::size_t>(column - cold_ / plan_.format.slots)];
      KVASIR_CHECK(entry.ordinal == static_cast<std::uint64_t>(column));
      store->read_rows(table.pages().of(entry.column).front(), 0, plan_.format.slots, rows.data());
      for (std::size_t slot = 0; slot < slots; ++slot)
        std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(slot * row), row,
                    bytes.begin() + static_cast<std::ptrdiff_t>((slot * count + t) * row));
    }
    report_.cold_bytes += bytes.size();
    cluster.blocks.push_back(
        tier_->write(std::move(bytes), plan_.part_bytes(static_cast<int>(count)), &report_.write_wait_seconds));
    writing_.push_back(cluster.blocks.back());
  }
}

// Requests all offloaded pages of a layer.
void FollowerHeads::begin_work(int layer) {
  if (layer >= plan_.layers) return;
  std::vector<std::shared_ptr<ColdFetch>>& fetches = work_fetches_[layer % FollowerPlan::kWorkLayers];
  const std::size_t row = plan_.format.row_bytes();
  for (Cluster& cluster : clusters_) {
    if (cluster.layer != layer) continue;
    const auto tables = static_cast<int>(cluster.tables.size());
    const int part_tokens = plan_.part_tokens(tables);
    std::vector<std::uint32_t> parts(static_cast<std::size_t>(plan_.format.slots / part_tokens));
    for (std::size_t part = 0; part < parts.size(); ++part) parts[part] = static_cast<std::uint32_t>(part);
    std::vector<ColdTier::Item> items;
    for (std::size_t column = 0; column < static_cast<std::size_t>(cold_ / plan_.format.slots); ++column)
      items.push_back({cluster.blocks[column], parts});
    PageStore* store = cache_->pool().store();
    std::vector<std::span<const PageId>> pages;
    for (const int table : cluster.tables)
      pages.push_back(work_[work_index(layer, places_[static_cast<std::size_t>(table)].of_layer)].ids());
    fetches.push_back(tier_->fetch(std::move(items), [=](std::size_t column, std::uint32_t part,
                                                         std::span<const std::byte> bytes) {
      for (int token = 0; token < part_tokens; ++token)
        for (int t = 0; t < tables; ++t)
          store->write_rows(pages[static_cast<std::size_t>(t)][column], static_cast<int>(part) * part_tokens + token, 1,
                            bytes.data() + static_cast<std::size_t>(token * tables + t) * row);
    }));
  }
}

// Makes hot what a cluster will read of the tokens before `end` when `next` runs: copies it from columns that are about
// to leave the tables, and requests the rest from the file.
void FollowerHeads::choose_rows(Cluster& cluster, const PolicyChunk& next, TokenIndex end, const KvSequence* tables) {
  ranges_.clear();
  missing_.clear();
  KVASIR_CHECK(unread_.reads(next, cluster.tables.front(), ranges_));
  cluster.set.change(ranges_, end, &missing_);
  if (missing_.empty()) return;
  const auto slots = static_cast<std::uint32_t>(plan_.format.slots);
  const std::size_t row = plan_.format.row_bytes();
  PageStore* store = cache_->pool().store();
  const auto hot = [&](std::size_t t) { return hot_[static_cast<std::size_t>(cluster.first_hot) + t].ids(); };
  const auto tables_of = static_cast<int>(cluster.tables.size());
  const auto part_tokens = static_cast<std::uint32_t>(plan_.part_tokens(tables_of));
  std::vector<ColdTier::Item> items;
  std::vector<std::vector<FollowerSet::Missing>> wanted;  // [item]
  std::vector<std::byte> bytes(row);
  for (const FollowerSet::Missing& missing : missing_) {
    const std::uint32_t column = missing.token / slots;
    if (static_cast<TokenIndex>(missing.token) >= cold_) {
      for (std::size_t t = 0; t < cluster.tables.size(); ++t) {
        const PageTable& own = tables->table(cluster.tables[t]);
        const std::size_t entry = column - static_cast<std::size_t>(cold_) / slots;
        const PageId page = own.pages().of(own.entries_of(own.frames().front())[entry].column).front();
        store->read_rows(page, static_cast<int>(missing.token % slots), 1, bytes.data());
        store->put_row(hot(t)[missing.row / slots], static_cast<int>(missing.row % slots), bytes.data());
      }
      continue;
    }
    const std::shared_ptr<ColdBlock>& block = cluster.blocks[column];
    if (items.empty() || items.back().block != block) {
      items.push_back({block, {}});
      wanted.emplace_back();
    }
    const std::uint32_t part = missing.token % slots / part_tokens;
    if (items.back().parts.empty() || items.back().parts.back() != part) items.back().parts.push_back(part);
    wanted.back().push_back(missing);
  }
  if (items.empty()) return;
  std::vector<std::span<const PageId>> pages;
  for (std::size_t t = 0; t < cluster.tables.size(); ++t) pages.push_back(hot(t));
  cluster.fetches.push_back(tier_->fetch(
      std::move(items),
      [=, wanted = std::move(wanted)](std::size_t item, std::uint32_t part, std::span<const std::byte> from) {
        for (const FollowerSet::Missing& missing : wanted[item]) {
          if (missing.token % slots / part_tokens != part) continue;
          const std::byte* record = from.data() + missing.token % part_tokens * row * pages.size();
          for (std::size_t t = 0; t < pages.size(); ++t)
            store->put_row(pages[t][missing.row / slots], static_cast<int>(missing.row % slots), record + t * row);
        }
      }));
}

}  // namespace kvasir

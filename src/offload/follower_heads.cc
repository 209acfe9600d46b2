#include "offload/follower_heads.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

Status not_written(const Status& why) {
  return why.with_message("what is offloaded to a file cannot be written: " + why.message());
}

}  // namespace

Status check_offload(const RetentionPolicy& policy, const KvCacheShape& shape, const ColdTier* tier) {
  if (policy.as<FollowsHeads>() == nullptr) return {};
  if (!shape.lanes_of.empty())
    return unsupported(
               "policy '{}' offloads keys and values that later layers of this model read too; choose another "
               "policy, or offload=off",
               policy.traits().spec)
        .about({"policy"});
  if (shape.page.encoded())
    return invalid_argument(
               "policy '{}' offloads keys and values as the cache has them in 16 or 32 bits, not as {}; choose f16, "
               "bf16 "
               "or f32, or offload=off",
               policy.traits().spec, codec_name(shape.page))
        .about({"policy", "kv_type"});
  if (tier != nullptr) return {};
  return invalid_argument("policy '{}' offloads to a file, but there is no folder for one; give one, or offload=off",
                          policy.traits().spec)
      .about({"demote_dir"});
}

Result<std::unique_ptr<FollowerHeads>> FollowerHeads::create(const RetentionPolicy& policy, KvCache* cache,
                                                             const KvCacheShape& shape, ColdTier* tier) {
  if (policy.as<FollowsHeads>() == nullptr) return std::unique_ptr<FollowerHeads>();
  KVASIR_RETURN_IF_ERROR(check_offload(policy, shape, tier));
  std::unique_ptr<FollowerHeads> heads(new FollowerHeads(policy, cache, shape, tier));
  if (heads->plan_.followers <= 0) return std::unique_ptr<FollowerHeads>();
  return heads;
}

FollowerHeads::FollowerHeads(const RetentionPolicy& policy, KvCache* cache, const KvCacheShape& shape, ColdTier* tier)
    : heads_(*policy.as<FollowsHeads>()),
      unread_(*policy.as<LeavesUnread>()),
      masses_(*policy.as<ObservesMasses>()),
      cache_(cache),
      tier_(tier),
      page_class_(cache->classes(shape.codec()).sealed),
      plan_(shape, heads_.bounds(shape.kv_heads, 1).leaders),
      places_(static_cast<std::size_t>(shape.lanes())),
      lists_(&cache->budget()),
      refs_(&cache->budget()) {}

FollowerHeads::~FollowerHeads() {
  drop_hot();
  drop_work();
}

// Finds the clusters once leaders are known. Returns whether there are any.
bool FollowerHeads::find_clusters() {
  if (!clusters_.empty()) return true;
  if (heads_.leader(0) < 0) return false;
  std::size_t hot = 0;
  for (int layer = 0; layer < plan_.layers; ++layer) {
    int of_layer = 0;
    const std::size_t first = clusters_.size();
    for (int head = 0; head < plan_.heads; ++head) {
      const int table = layer * plan_.heads + head;
      const int leader = heads_.leader(table);
      if (leader == table) continue;
      auto cluster = std::find_if(clusters_.begin() + static_cast<std::ptrdiff_t>(first), clusters_.end(),
                                  [&](const Cluster& c) { return heads_.leader(c.tables.front()) == leader; });
      if (cluster == clusters_.end()) cluster = clusters_.insert(cluster, Cluster{.layer = layer});
      Place& place = places_[static_cast<std::size_t>(table)];
      place = {static_cast<int>(cluster - clusters_.begin()), static_cast<int>(cluster->tables.size()), of_layer++};
      cluster->tables.push_back(table);
    }
    KVASIR_CHECK(of_layer <= plan_.followers);
  }
  for (Cluster& cluster : clusters_) {
    cluster.first_hot = static_cast<int>(hot);
    hot += cluster.tables.size();
  }
  make_refs();
  return !clusters_.empty();
}

void FollowerHeads::make_refs() {
  for (const Cluster& cluster : clusters_)
    for (std::size_t t = 0; t < cluster.tables.size(); ++t) hot_.emplace_back(&cache_->pool());
  for (int i = 0; i < FollowerPlan::kWorkLayers * plan_.followers; ++i) work_.emplace_back(&cache_->pool());
}

FollowerHeads::FollowerHeads(const RetentionPolicy& policy, const FollowerHeads& other)
    : heads_(*policy.as<FollowsHeads>()),
      unread_(*policy.as<LeavesUnread>()),
      masses_(*policy.as<ObservesMasses>()),
      cache_(other.cache_),
      tier_(other.tier_),
      page_class_(other.page_class_),
      plan_(other.plan_),
      places_(other.places_),
      lists_(&cache_->budget()),
      refs_(&cache_->budget()),
      cold_(other.cold_),
      leaves_(other.cold_),
      lacks_hot_(other.lacks_hot_),
      writing_(other.writing_),
      report_(other.report_) {
  for (const Cluster& cluster : other.clusters_)
    clusters_.push_back({.layer = cluster.layer, .tables = cluster.tables, .first_hot = cluster.first_hot});
  if (!clusters_.empty()) make_refs();
}

Result<std::unique_ptr<FollowerHeads>> FollowerHeads::fork(const RetentionPolicy& policy) const {
  KVASIR_RETURN_IF_ERROR(status_);
  // Reads under way write to the rows that are copied.
  for (const Cluster& cluster : clusters_)
    for (const std::shared_ptr<ColdFetch>& fetch : cluster.fetches) {
      fetch->wait();
      KVASIR_RETURN_IF_ERROR(fetch->status());
    }
  std::unique_ptr<FollowerHeads> copy(new FollowerHeads(policy, *this));
  if (cold_ == 0) return copy;
  if (const std::uint64_t room = bytes(); !cache_->budget().make_available(room))
    return kv_memory_full(cache_->budget(), room);
  for (std::size_t c = 0; c < clusters_.size(); ++c) {
    copy->clusters_[c].blocks.reserve(static_cast<std::size_t>(plan_.list_columns(list_tokens_)));
    copy->clusters_[c].blocks.assign(clusters_[c].blocks.begin(), clusters_[c].blocks.end());
  }
  KVASIR_RETURN_IF_ERROR(copy->resize_lists(list_tokens_));
  if (hot_.front().size() == 0) return copy;
  KVASIR_RETURN_IF_ERROR(copy->take_hot(chosen_));
  for (std::size_t i = 0; i < hot_.size(); ++i) cache_->pool().store()->copy(hot_[i].ids(), copy->hot_[i].ids());
  for (std::size_t c = 0; c < clusters_.size(); ++c) copy->clusters_[c].set.copy(clusters_[c].set, chosen_);
  return copy;
}

bool FollowerHeads::reads_all(const PolicyChunk& chunk) const {
  if (chunk.prompt || chunk.rows > 1) return true;
  std::vector<IndexRange> ranges;
  return !unread_.reads(chunk, clusters_.front().tables.front(), ranges);
}

std::uint64_t FollowerHeads::bytes() const {
  std::uint64_t pages = 0;
  for (const PageRefs& refs : hot_) pages += refs.size();
  for (const PageRefs& refs : work_) pages += refs.size();
  return pages * cache_->pool().page_cost(page_class_) + lists_.bytes() + refs_.bytes();
}

std::int64_t FollowerHeads::most_chosen(const PolicyChunk& chunk) const {
  return chunk.ends_prompt() ? heads_.bounds(plan_.heads, chunk.end()).chosen : heads_.chosen();
}

FollowerHeads::Room FollowerHeads::plan(const PolicyChunk& chunk) const {
  Room room;
  const bool known = heads_.leader(0) >= 0;
  const std::int64_t clusters = clusters_.empty()
                                    ? std::int64_t{plan_.layers} * std::max(plan_.heads - plan_.followers, 1)
                                    : std::ssize(clusters_);
  const bool goes_on = chunk.prompt && !chunk.ends_prompt();
  if (!known && goes_on) return room;
  const bool has_hot = chosen_ > 0 && !chunk.prompt;
  std::uint64_t work = 0;
  if (cold_ > 0 && reads_all(chunk)) work = plan_.work_bytes(cold_);
  std::uint64_t now = 0;
  for (const PageRefs& refs : work_) now += refs.size() * (plan_.page_cost() + sizeof(PageId));
  room.bytes = work > now ? work - now : 0;
  // Lists and blocks as they may be when the chunk has ended.
  const std::int64_t tokens = chunk.end() + plan_.format.slots;
  std::uint64_t lists = plan_.entry_bytes(clusters, tokens) + plan_.block_bytes(clusters, tokens);
  if (!goes_on) {
    const std::int64_t chosen = has_hot ? chosen_ : most_chosen(chunk);
    lists += FollowerPlan::set_bytes(clusters, chosen);
    const std::uint64_t hot = has_hot ? 0 : plan_.hot_bytes(chosen);
    work = std::max(work, now);  // given back first
    if (hot > work) room.reserve += hot - work;
  }
  if (lists > lists_.bytes()) room.reserve += lists - lists_.bytes();
  return room;
}

Status FollowerHeads::make_room(const PolicyChunk& chunk) {
  if (chunk.prompt && chosen_ > 0) drop_hot();
  lacks_hot_ = lacks_hot_ || chunk.prompt;
  if (cold_ == 0) return {};
  KVASIR_RETURN_IF_ERROR(resize_lists(chunk.end() + plan_.format.slots));
  if (!reads_all(chunk)) {
    if (!lacks_hot_) return {};
    // The prompt for which the hot rows were dropped was abandoned.
    drop_work();
    KVASIR_RETURN_IF_ERROR(take_hot(heads_.chosen()));
    for (Cluster& cluster : clusters_) choose_rows(cluster, chunk, cold_, nullptr);
    lacks_hot_ = false;
    return {};
  }
  const auto columns = static_cast<std::size_t>(cold_ / plan_.format.slots);
  for (PageRefs& refs : work_) {
    const std::size_t more = columns - refs.size();
    if (more == 0) continue;
    if (!refs_.try_resize(refs_.bytes() + more * sizeof(PageId)))
      return kv_memory_full(cache_->budget(), more * sizeof(PageId));
    refs.reserve(columns);
    if (!refs.try_allocate(more, page_class_, PageContent::kUndefined)) {
      KVASIR_CHECK(refs_.try_resize(refs_.bytes() - more * sizeof(PageId)));
      return kv_memory_full(cache_->budget(), more * plan_.page_cost());
    }
  }
  return {};
}

void FollowerHeads::end_fetches(std::vector<std::shared_ptr<ColdFetch>>& fetches, bool needed,
                                KvReport::Fetched* report) {
  if (fetches.empty()) return;
  double waited = 0;
  for (const std::shared_ptr<ColdFetch>& fetch : fetches) {
    waited += fetch->wait();
    if (!fetch->status().ok() && status_.ok() && needed)
      status_ = fetch->unwritten() ? not_written(fetch->status())
                                   : fetch->status().with_message("what was offloaded to a file cannot be read back: " +
                                                                  fetch->status().message());
    report->bytes += fetch->bytes();
    report->seconds += fetch->seconds();
  }
  report->rounds += 1;
  report->stalls += waited > 0 ? 1 : 0;
  report->stall_seconds += waited;
  fetches.clear();
}

void FollowerHeads::drop_work() {
  std::size_t count = 0;
  for (auto& fetches : work_fetches_) end_fetches(fetches, false, &report_.prompts);
  for (PageRefs& refs : work_) {
    if (refs.size() == 0) continue;
    count += refs.size();
    refs = PageRefs(&cache_->pool());
  }
  KVASIR_CHECK(refs_.try_resize(refs_.bytes() - count * sizeof(PageId)));
}

void FollowerHeads::drop_hot() {
  std::size_t count = 0;
  for (Cluster& cluster : clusters_) {
    end_fetches(cluster.fetches, false, &report_.chosen);
    cluster.set.clear();
  }
  for (PageRefs& refs : hot_) {
    count += refs.size();
    refs = PageRefs(&cache_->pool());
  }
  KVASIR_CHECK(refs_.try_resize(refs_.bytes() - count * sizeof(PageId)));
  KVASIR_CHECK(lists_.try_resize(lists_.bytes() - FollowerPlan::set_bytes(std::ssize(clusters_), chosen_)));
  chosen_ = 0;
  report_.hot_bytes = 0;
}

Status FollowerHeads::take_hot(std::int64_t chosen) {
  const auto pages = static_cast<std::size_t>(plan_.columns(chosen));
  const std::uint64_t refs_bytes = hot_.size() * pages * sizeof(PageId);
  const std::uint64_t sets = FollowerPlan::set_bytes(std::ssize(clusters_), chosen);
  if (const std::uint64_t all = refs_bytes + sets + hot_.size() * pages * plan_.page_cost();
      !cache_->budget().make_available(all))
    return kv_memory_full(cache_->budget(), all);
  KVASIR_CHECK(refs_.try_resize(refs_.bytes() + refs_bytes) && lists_.try_resize(lists_.bytes() + sets));
  chosen_ = chosen;
  for (PageRefs& refs : hot_) {
    refs.reserve(pages);
    KVASIR_CHECK(refs.try_allocate(pages, page_class_, PageContent::kUndefined));
  }
  for (Cluster& cluster : clusters_) cluster.set.reserve(chosen);
  report_.hot_bytes = hot_.size() * pages * plan_.format.bytes();
  return {};
}

OffloadedPages* FollowerHeads::begin_pass(const PolicyChunk& chunk, const KvSequence& tables) {
  if (cold_ == 0) return nullptr;
  chunk_ = chunk;
  whole_ = reads_all(chunk);
  chooses_ = !whole_ && masses_.wants_row(chunk, 0);
  chosen_layers_ = 0;
  for (Cluster& cluster : clusters_) {
    cluster.entries.clear();
    cluster.first_rows.clear();
    if (whole_) {
      for (std::uint64_t column = 0; column < static_cast<std::uint64_t>(cold_ / plan_.format.slots); ++column)
        cluster.entries.push_back({slot_range(0, plan_.format.slots), column, 0});
    } else {
      cluster.set.add_entries(plan_.format.slots, &cluster.entries, &cluster.first_rows);
    }
    cluster.offloaded = static_cast<std::uint32_t>(cluster.entries.size());
    const PageTable& own = tables.table(cluster.tables.front());
    const std::span<const PageEntry> entries = own.entries_of(own.frames().front());
    KVASIR_CHECK(own.frames().size() == 1 && cluster.entries.size() + entries.size() <= cluster.entries.capacity());
    cluster.entries.insert(cluster.entries.end(), entries.begin(), entries.end());
  }
  if (whole_) begin_work(0);
  return this;
}

void FollowerHeads::describe(int table, BatchTable* out) const {
  const Place& place = places_[static_cast<std::size_t>(table)];
  if (cold_ == 0 || place.cluster < 0) return;
  const Cluster& cluster = clusters_[static_cast<std::size_t>(place.cluster)];
  // The tables of a cluster have given back the same tokens, so they have the same columns.
  const std::span<const PageEntry> own = out->frames.front().entries;
  KVASIR_CHECK(out->frames.size() == 1 && out->hidden.empty() &&
               own.size() + cluster.offloaded == cluster.entries.size() &&
               std::ranges::equal(own, std::span(cluster.entries).subspan(cluster.offloaded), {}, &PageEntry::column,
                                  &PageEntry::column));
  out->frames.front().entries = cluster.entries;
  out->offloaded = cluster.offloaded;
  for (MaskBlock& block : out->blocks) {
    block.begin += cluster.offloaded;
    block.end += cluster.offloaded;
  }
  if (whole_) {
    out->offloaded_pages = work_[work_index(cluster.layer, place.of_layer)].ids();
    return;
  }
  out->offloaded_pages = hot_[static_cast<std::size_t>(cluster.first_hot + place.of_cluster)].ids();
  out->offloaded_rows = cluster.set.rows();
  out->offloaded_first = cluster.first_rows;
}

void FollowerHeads::fetch(int layer) {
  if (whole_) {
    begin_work(layer + 1);
    end_fetches(work_fetches_[layer % FollowerPlan::kWorkLayers], true, &report_.prompts);
    return;
  }
  // The layers before this one have attended, so that their choice for the next token is known.
  if (chooses_) {
    for (Cluster& cluster : clusters_)
      if (cluster.layer >= chosen_layers_ && cluster.layer < layer)
        choose_rows(cluster, {chunk_.end(), 1, false, 0}, cold_, nullptr);
    chosen_layers_ = layer;
  }
  for (Cluster& cluster : clusters_)
    if (cluster.layer == layer) end_fetches(cluster.fetches, true, &report_.chosen);
}

Status FollowerHeads::resize_lists(std::int64_t tokens) {
  std::uint64_t bytes =
      plan_.entry_bytes(std::ssize(clusters_), tokens) + FollowerPlan::set_bytes(std::ssize(clusters_), chosen_);
  for (const Cluster& cluster : clusters_) {
    const int parts = plan_.format.slots / plan_.part_tokens(static_cast<int>(cluster.tables.size()));
    bytes += cluster.blocks.size() * ColdBlock::memory_bytes(static_cast<std::size_t>(parts));
  }
  if (!lists_.try_resize(bytes)) return kv_memory_full(cache_->budget(), bytes - lists_.bytes());
  list_tokens_ = tokens;
  const auto columns = static_cast<std::size_t>(plan_.list_columns(tokens));
  for (Cluster& cluster : clusters_) {
    cluster.entries.reserve(columns);
    cluster.first_rows.reserve(columns);
    cluster.blocks.reserve(columns);
  }
  return {};
}

void FollowerHeads::keep(const PolicyChunk& chunk, const KvSequence& tables) {
  leaves_ = cold_;
  if (!status_.ok() || !find_clusters()) return;
  const bool goes_on = chunk.prompt && !chunk.ends_prompt();
  const PolicyChunk next{chunk.end(), 1, false, 0};
  const bool chooses = !goes_on && !reads_all(next);
  if (goes_on || chooses) {
    const TokenIndex slots = plan_.format.slots;
    leaves_ = std::max(heads_.settled(chunk.end(), goes_on) / slots * slots, cold_);
  }
  if (leaves_ == 0) return;
  if (chooses) drop_work();
  status_ = resize_lists(chunk.end() + plan_.format.slots);
  if (status_.ok()) {
    for (Cluster& cluster : clusters_)
      write_columns(cluster, tables, cold_ / plan_.format.slots, leaves_ / plan_.format.slots);
    status_ = resize_lists(chunk.end() + plan_.format.slots);
  }
  if (chooses && chosen_ == 0 && status_.ok()) status_ = take_hot(most_chosen(chunk));
  lacks_hot_ = lacks_hot_ && !chooses;
  if (!status_.ok()) {
    leaves_ = cold_;
    return;
  }
  if (chooses)
    for (Cluster& cluster : clusters_) choose_rows(cluster, next, leaves_, &tables);
  std::erase_if(writing_, [this](const std::shared_ptr<ColdBlock>& block) {
    if (block->state() == ColdBlock::State::kFailed && status_.ok()) status_ = not_written(block->status());
    return block->state() != ColdBlock::State::kQueued;
  });
}

void FollowerHeads::give_back(KvSequence* tables) {
  if (leaves_ == cold_) return;
  for (const Cluster& cluster : clusters_)
    for (const int table : cluster.tables) tables->table(table).give_back_to(leaves_);
  cold_ = leaves_;
}

FollowerHeads::Report FollowerHeads::report(const KvSequence& tables) const {
  Report report = report_;
  for (int t = 0; t < tables.governed_tables(); ++t)
    if (heads_.leader(t) != t)
      report.hot_bytes += static_cast<std::uint64_t>(tables.table(t).columns().count()) * plan_.format.bytes();
  return report;
}

}  // namespace kvasir

#include "prefix_store/prefix_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/check.h"
#include "prefix_store/snapshot_image.h"
#include "sequence/kv_report.h"

namespace kvasir {
namespace {

class SequenceSnapshot final : public PrefixSnapshot {
 public:
  explicit SequenceSnapshot(std::unique_ptr<Sequence> sequence) : sequence_(std::move(sequence)) {
    sequence_->mutable_tables().mark_cached();
  }
  std::uint64_t own_bytes() const override { return sequence_->own_bytes_beside_pages(); }
  std::uint64_t bytes_with_pages() const override { return sequence_->bytes(); }
  const Sequence& sequence() const { return *sequence_; }

 private:
  std::unique_ptr<Sequence> sequence_;
};

// The most places of a text at which a stored snapshot is looked for.
constexpr std::int64_t kMostPlaces = 64;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

PrefixKeep keep_of(const PrefixUse& use) {
  PrefixKeep keep;
  keep.pinned = use.pinned;
  keep.tenant = use.tenant;
  if (use.ttl > 0) keep.until = now() + use.ttl;
  return keep;
}

// Whether chunk boundaries change what the policy keeps, or the bits of keys.
bool chunk_matters(const RetentionPolicy& policy) {
  return policy.by_token() || policy.traits().realign == Realign::kRotate;
}

std::string lineage_of(const PrefixText& text) {
  if (!chunk_matters(*text.policy)) return text.policy->traits().spec;
  return fmt::format("{} chunk={}", text.policy->traits().spec, prompt_chunk(*text.policy, text.chunk));
}

// Whether the sequence still has the keys and values of all its tokens, as under any policy. If a codec leaves the
// newest tokens in 16 bits, a text that ends with them does not read their encoded pages: then only snapshots serve.
bool is_exact(const Sequence& sequence) {
  return !sequence.counters().first_dropped && all_read(sequence.policy()) && sequence.truncatable_from() == 0 &&
         sequence.shape().recent == 0;
}

}  // namespace

PrefixStore::PrefixStore(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache, std::uint64_t most_bytes)
    : model_(std::move(model)), kv_(std::move(cache)), cache_(kv_.get(), most_bytes) {
  for (const KvCodec& codec : kv_->codecs()) codecs_.emplace_back(codec, codecs_.empty() ? "" : codec_name(codec));
  kv_->budget().set_reclaimer([this] { return cache_.evict_one(); });
}

PrefixStore::~PrefixStore() {
  kv_->budget().set_reclaimer({});
}

std::string_view PrefixStore::codec_name_of(const KvCodec& codec) const {
  const auto found = std::ranges::find(codecs_, codec, [](const auto& known) { return known.first; });
  KVASIR_CHECK(found != codecs_.end());
  return found->second;
}

// Whether pages or snapshots of another codec hold more than `tokens` tokens of a text.
bool PrefixStore::holds_in_other_codec(const PrefixQuery& query, std::int64_t tokens) const {
  return std::ranges::any_of(codecs_, [&](const auto& other) {
    PrefixQuery in_other = query;
    in_other.codec = other.second;
    if (other.second == query.codec) return false;
    return cache_.blocks_held(in_other.space(), query.tokens) * kv_->shape().page.slots > tokens ||
           cache_.find(in_other).tokens > tokens;
  });
}

PrefixQuery PrefixStore::query_of(const PrefixUse& use, const PrefixText& text, const std::string& lineage) const {
  const RetentionPolicy& policy = *text.policy;
  // Under other policies generated tokens must be run again token by token, or read what was dropped from between them.
  const bool by_range = !policy.by_token() && policy.as<DropsThoughts>() == nullptr;
  const std::int64_t known = by_range ? std::ssize(text.tokens) : text.prompt;
  PrefixQuery query;
  query.salt = use.salt;
  query.codec = codec_name_of(codec_of(use));
  query.adapters = use.adapter_key;
  query.lineage = lineage;
  query.tokens = text.tokens.first(static_cast<std::size_t>(known));
  query.most_exact = std::min({policy.exact_prefix(text.prompt), known - 1, model_->config.context});
  if (by_range) query.most_exact = std::min(policy.exact_prefix(known), known - 1);
  if (codec_of(use).recent > 0 || !kv_->shape().states.empty()) query.most_exact = 0;
  if (chunk_matters(policy)) query.exact_multiple = prompt_chunk(policy, text.chunk);
  // A snapshot of a longer prompt must not lie where the state depends on this prompt's end.
  query.most_snapshot =
      by_range && !chunk_matters(policy) ? known - 1 : std::min(text.prompt - 1, shared_prefix(policy, text.prompt));
  query.now = now();
  return query;
}

std::int64_t PrefixStore::find(const PrefixUse& use, const PrefixText& text) const {
  if (use.bypass) return 0;
  const std::string lineage = lineage_of(text);
  return cache_.find(query_of(use, text, lineage)).tokens;
}

std::int64_t PrefixStore::most_exact(const PrefixUse& use, const PrefixText& text) const {
  if (use.bypass) return 0;
  const PrefixQuery query = query_of(use, text, {});
  return std::max<std::int64_t>(query.most_exact / query.exact_multiple * query.exact_multiple, 0);
}

std::int64_t PrefixStore::will_find(const PrefixUse& use, const PrefixText& text, const PrefixUse& other_use,
                                    const PrefixText& other, std::int64_t common) const {
  if (use.bypass || other_use.bypass || use.salt != other_use.salt || codec_of(use) != codec_of(other_use) ||
      use.adapter_key != other_use.adapter_key)
    return 0;
  const PrefixQuery query = query_of(use, text, {});
  common = std::min({common, query.most_exact, other.policy->exact_prefix(other.prompt)});
  // Pages are left only at chunk ends at which no window has given any back.
  const std::int64_t chunk = prompt_chunk(*other.policy, other.chunk);
  for (const WindowGroup& group : kv_->shape().windows)
    common = std::min(common, (group.window + kv_->shape().page.slots - 2) / chunk * chunk);
  const std::int64_t multiple = std::max<std::int64_t>(query.exact_multiple, kv_->shape().page.slots);
  return std::max<std::int64_t>(common, 0) / multiple * multiple;
}

PrefixStore::Start PrefixStore::start(const PrefixUse& use, const PrefixText& text) {
  Start start;
  if (use.bypass) return start;
  const std::string lineage = lineage_of(text);
  const PrefixQuery query = query_of(use, text, lineage);
  const PrefixMatch match = cache_.find(query);
  start.miss = match.miss;
  // Where the chunks of a prompt matter, generated tokens are never shared: dropped thoughts are not why nothing was
  // found.
  if (start.miss == PrefixMiss::kUnknown && !chunk_matters(*text.policy) &&
      thoughts_.passed(query.space(), text.tokens, match.tokens))
    start.miss = PrefixMiss::kThoughts;
  if (start.miss == PrefixMiss::kUnknown && holds_in_other_codec(query, match.tokens)) start.miss = PrefixMiss::kCodec;
  if (match.tokens == 0) return start;
  const PrefixMiss miss = start.miss;
  start.miss = PrefixMiss::kNoRoom;
  if (match.snapshot != nullptr) {
    cache_.touch(query, *match.snapshot);
    auto copy = static_cast<const SequenceSnapshot&>(*match.snapshot).sequence().fork();
    if (!copy.ok()) return start;
    start.sequence = std::move(*copy);
    move_prompt_end(start.sequence->mutable_policy(), text.prompt);
  } else {
    // Making room for the tables may evict these blocks, but does not free their pages.
    PageRefs held(&kv_->pool());
    held.add(cache_.pages(query, match.tokens));
    start.sequence = adopt(use, text, held.ids(), match.tokens);
    if (start.sequence == nullptr) return start;
  }
  start.miss = miss;
  start.tokens = match.tokens;
  start.snapshot = match.snapshot != nullptr;
  return start;
}

// Returns a sequence in the state that a cold run would have left; null if there is no room for its tables.
std::unique_ptr<Sequence> PrefixStore::adopt(const PrefixUse& use, const PrefixText& text,
                                             std::span<const PageId> pages, std::int64_t tokens) const {
  auto sequence = std::make_unique<Sequence>(model_, kv_, text.policy->clone(), codec_of(use), use.adapters);
  if (!sequence->mutable_tables().adopt(pages).ok()) return nullptr;
  RetentionPolicy& policy = sequence->mutable_policy();
  const int tables = sequence->tables().governed_tables();
  const int grid = prompt_chunk(policy, text.chunk);
  KeepPlan plan;
  for (std::int64_t first = 0; first < tokens;) {
    const int want = next_chunk_rows(first, tokens, tokens, grid);
    const int rows = chunk_rows(policy, want);
    const PolicyChunk chunk{first, rows, true, std::max(text.prompt, tokens + 1) - first - rows};
    const auto decide = [&](const auto& ask) {
      for (int table = 0; table < tables; ++table) {
        plan.clear();
        ask(table);
        KVASIR_CHECK(plan.drop.empty() && plan.moves.empty());
      }
    };
    decide([&](int table) { policy.end_chunk(chunk, table, plan); });
    decide([&](int table) { policy.finish_chunk(chunk, table, plan); });
    first += rows;
  }
  if (!sequence->resume({tokens, tokens, {}}).ok()) return nullptr;
  sequence->mutable_tables().give_back();
  return sequence;
}

bool PrefixStore::wants_lasting(const PrefixUse& use, const PrefixText& text) const {
  const RetentionPolicy& policy = *text.policy;
  if (use.bypass || text.lasting <= 0 || text.lasting > text.prompt) return false;
  if (chunk_matters(policy) || policy.as<LeavesUnread>() != nullptr || policy.traits().demotion) return false;
  const KvCacheShape& shape = kv_->shape();
  const bool exact = shape.window == 0 && shape.windows.empty() && shape.states.empty() && codec_of(use).recent == 0;
  return !exact || policy.exact_prefix(text.lasting) < text.lasting;
}

void PrefixStore::note_thoughts(const PrefixUse& use, const PrefixText& text) {
  if (use.bypass || text.lasting <= 0 || text.lasting > text.prompt) return;
  thoughts_.remember(space_of(use), text.tokens.first(static_cast<std::size_t>(text.lasting)));
}

bool PrefixStore::leave(const PrefixUse& use, const PrefixText& text, const Sequence& sequence) {
  if (use.bypass) return false;
  const RetentionPolicy& policy = *text.policy;
  const std::int64_t seen = sequence.tables().next_index();
  const auto tokens = text.tokens.first(static_cast<std::size_t>(seen));
  const bool exact = is_exact(sequence) && policy.exact_prefix(text.prompt) > 0;
  // A policy that cannot continue pages does not leave any either: pruning would have to copy shared pages.
  if (exact) cache_.add_pages(space_of(use), tokens, sequence.tables(), keep_of(use));
  if (exact && policy.exact_prefix(text.prompt) >= seen) return false;
  // A snapshot would hold what was demoted or offloaded, too.
  if (!sequence.offloaded().empty()) return false;
  const std::int64_t most = std::min(text.prompt - 1, shared_prefix(policy, text.prompt));
  const std::int64_t grid = prompt_chunk(policy, text.chunk);
  bool wanted = false;
  for (std::int64_t part = most; part >= grid && !wanted; part /= 2) wanted = seen == part / grid * grid;
  const bool lasting = seen == text.lasting && wants_lasting(use, text);
  if (!wanted && !lasting) return false;
  auto copy = sequence.fork();
  if (!copy.ok()) return false;
  cache_.add_snapshot(space_of(use), lineage_of(text), tokens, std::make_unique<SequenceSnapshot>(std::move(*copy)),
                      keep_of(use));
  return wanted;
}

StoredSnapshots PrefixStore::stored_snapshots(const PrefixUse& use, const PrefixText& text, std::int64_t held) {
  StoredSnapshots stored;
  if (use.bypass) return stored;
  const std::string lineage = lineage_of(text);
  const std::int64_t grid = prompt_chunk(*text.policy, text.chunk);
  // Texts that are longer than a window have no exact pages outside memory.
  const bool has_windows = kv_->shape().window > 0 || !kv_->shape().windows.empty();
  const std::int64_t least = has_windows ? held : std::max(held, most_exact(use, text));
  std::int64_t place = query_of(use, text, lineage).most_snapshot / grid * grid;
  for (; place > least && std::ssize(stored.places) < kMostPlaces; place -= grid)
    stored.places.push_back({snapshot_key(use, text, place), place});
  if (stored.places.empty()) return stored;
  stored.add = [this, use, lineage, policy = std::shared_ptr<const RetentionPolicy>(text.policy->clone())](
                   std::span<const TokenId> tokens, std::span<const std::byte> image) {
    return add_stored(use, *policy, lineage, tokens, image);
  };
  return stored;
}

Hash128 PrefixStore::stored_lineage(const PrefixUse& use, std::string_view lineage) const {
  const KvCacheShape shape = kv_->shape().with(codec_of(use));
  if (use.adapter_key.empty()) return image_lineage(*model_, shape, lineage);
  return image_lineage(*model_, shape, fmt::format("{}\n{}", lineage, use.adapter_key));
}

BlobKey PrefixStore::snapshot_key(const PrefixUse& use, const PrefixText& text, std::int64_t tokens) const {
  BlobKey key =
      text_key(stored_lineage(use, lineage_of(text)), use.salt, text.tokens.first(static_cast<std::size_t>(tokens)));
  key.order = static_cast<std::uint32_t>(std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max()));
  return key;
}

bool PrefixStore::add_stored(const PrefixUse& use, const RetentionPolicy& policy, const std::string& lineage,
                             std::span<const TokenId> text, std::span<const std::byte> image) {
  const BlobKey key = text_key(stored_lineage(use, lineage), use.salt, text);
  const Result<ImageParts> parts = read_image(key, text, image);
  if (!parts.ok() || !kv_->budget().make_available(parts->pages.size() + parts->state.size())) return false;
  auto sequence = restore_image(*parts, std::ssize(text), model_, kv_, policy.clone(), codec_of(use), use.adapters);
  if (!sequence.ok()) return false;
  cache_.add_snapshot(space_of(use), lineage, text, std::make_unique<SequenceSnapshot>(std::move(*sequence)),
                      keep_of(use));
  return true;
}

void PrefixStore::leave_last(const PrefixUse& use, const PrefixText& text, std::unique_ptr<Sequence> sequence) {
  KVASIR_CHECK(sequence != nullptr);
  if (use.bypass || !sequence->status().ok() || sequence->in_chunk()) return;
  const RetentionPolicy& policy = *text.policy;
  const auto tokens = text.tokens.first(static_cast<std::size_t>(sequence->tables().next_index()));
  if (is_exact(*sequence)) {
    if (policy.exact_prefix(text.prompt) > 0) cache_.add_pages(space_of(use), tokens, sequence->tables(), keep_of(use));
  } else if (!chunk_matters(policy) && policy.as<LeavesUnread>() == nullptr && policy.as<DropsThoughts>() == nullptr) {
    const std::string lineage = lineage_of(text);
    cache_.add_snapshot(space_of(use), lineage, tokens, std::make_unique<SequenceSnapshot>(std::move(sequence)),
                        keep_of(use));
  }
}

void PrefixStore::discard(const PrefixUse& use, const PrefixText& text) {
  if (!use.bypass) cache_.discard(space_of(use), text.tokens);
}

void PrefixStore::expire() {
  cache_.expire(now());
}

}  // namespace kvasir

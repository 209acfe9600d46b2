#include "prefix_store/prefix_tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "prefix_store/snapshot_image.h"

namespace kvasir {
namespace {

// About how many bytes advance() copies into pages.
constexpr std::uint64_t kBytesAtOnce = std::uint64_t{16} << 20;

// The most keys that are remembered of a store; then all are forgotten.
constexpr std::size_t kMostKnown = 65536;

// The longest that a request waits to learn whether a store has its tokens.
constexpr double kAskSeconds = 0.1;

// The longest that it waits for the tokens themselves, as a multiple of the time that computing them takes.
constexpr double kPatience = 1.0;

Hash128 with_adapters(const Hash128& lineage, std::string_view adapters) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(&lineage, 1)));
  hasher.add(std::as_bytes(std::span(adapters)));
  return hasher.digest();
}

}  // namespace

PrefixTiers::PrefixTiers(PrefixCache* cache, KvCache* kv, std::vector<Form> forms,
                         std::vector<std::unique_ptr<BlobStore>> stores, Warn warn)
    : cache_(cache), kv_(kv), warn_(std::move(warn)), forms_(std::move(forms)) {
  for (std::unique_ptr<BlobStore>& store : stores) tiers_.push_back(std::make_unique<Tier>(std::move(store)));
}

std::optional<PrefixTiers::Form> PrefixTiers::form_of(const PrefixSpace& space) const {
  const auto found = std::ranges::find(forms_, space.codec, &Form::codec);
  if (found == forms_.end()) return std::nullopt;
  Form form = *found;
  if (!space.adapters.empty()) form.shape.lineage = with_adapters(form.shape.lineage, space.adapters);
  return form;
}

std::span<const TokenId> PrefixTiers::text_of(const PrefixFetch& fetch, const PrefixFetch::Part& part) {
  return std::span(fetch.text_).first(static_cast<std::size_t>(part.end));
}

bool PrefixTiers::Tier::holds(const BlobKey& key) {
  if (being_written.contains(key.text.low)) return true;
  if (!queue.store().answers_at_once()) return known.contains(key.text.low);
  const auto sizes = queue.store().sizes(std::span(&key, 1));
  return sizes.ok() && sizes->front() > 0;
}

void PrefixTiers::Tier::remember(const BlobKey& key) {
  if (queue.store().answers_at_once()) return;
  if (known.size() >= kMostKnown) known.clear();
  known.insert(key.text.low);
}

// Looks for a blob in the stores that answer at once.
bool PrefixTiers::find_near(PrefixFetch::Part& part) const {
  for (std::size_t t = 0; t < tiers_.size() && !part.there; ++t) {
    BlobStore& store = tiers_[t]->queue.store();
    if (!store.answers_at_once()) continue;
    const auto sizes = store.sizes(std::span(&part.key, 1));
    if (!sizes.ok()) continue;
    note_size(part, sizes->front(), t);
    if (part.there) store.touch(part.key);
  }
  return part.there;
}

void PrefixTiers::note_size(PrefixFetch::Part& part, std::uint64_t bytes, std::size_t tier) {
  part.there = part.bytes > 0 ? bytes == part.bytes : bytes > 0 && bytes <= kBufferBytes;
  if (part.there) part.bytes = bytes;
  part.tier = tier;
}

// Returns the number of the store that answers later; the number of stores if none does.
std::size_t PrefixTiers::far() const {
  std::size_t far = tiers_.size();
  for (std::size_t t = 0; t < tiers_.size(); ++t)
    if (!tiers_[t]->queue.store().answers_at_once() && tiers_[t]->queue.store().usable()) far = t;
  return far;
}

// Adds the parts behind those that the cache holds, as far as stores may have them.
void PrefixTiers::add_parts(PrefixFetch& fetch, const PrefixSpace& space, std::span<const TokenId> text,
                            std::int64_t most) const {
  const std::optional<Form> form = form_of(space);
  if (!form) return;
  const PartShape& shape = form->shape;
  fetch.shape_ = shape;
  fetch.class_ = form->of;
  fetch.first_ = cache_->blocks_held(space, text) / shape.blocks;
  const std::int64_t end = std::min(most, std::ssize(text)) / shape.tokens();
  for (std::int64_t number = 0; number < end; ++number) {
    PrefixFetch::Part part{.key = part_key(shape, space.salt, text, number),
                           .end = (number + 1) * shape.tokens(),
                           .bytes = shape.bytes(number)};
    find_near(part);  // marks parts that the cache holds as used in the stores, too
    if (number < fetch.first_) continue;
    if (!part.there && far() == tiers_.size()) break;
    fetch.parts_.push_back(part);
  }
}

std::vector<PrefixFetch::Part*> PrefixFetch::candidates() {
  std::vector<Part*> all;
  for (std::vector<Part>* list : {&parts_, &snapshots_})
    for (Part& part : *list) all.push_back(&part);
  return all;
}

// Returns a fetch under way that may bring the first wanted part or a wanted snapshot; null: there is none.
std::shared_ptr<PrefixFetch> PrefixTiers::bringing(const PrefixFetch& wanted) const {
  const auto wants = [&](const PrefixFetch::Part* other) {
    return (!wanted.parts_.empty() && other->key.text == wanted.parts_.front().key.text) ||
           std::ranges::any_of(wanted.snapshots_, [&](const auto& each) { return each.key.text == other->key.text; });
  };
  const auto found = std::ranges::find_if(
      fetches_, [&](const auto& fetch) { return std::ranges::any_of(fetch->candidates(), wants); });
  return found == fetches_.end() ? nullptr : *found;
}

std::shared_ptr<PrefixFetch> PrefixTiers::fetch(const PrefixSpace& space, std::span<const TokenId> text,
                                                std::int64_t held, std::int64_t most, StoredSnapshots snapshots,
                                                double seconds_per_token, bool* shared) {
  *shared = false;
  auto fetch = std::make_shared<PrefixFetch>();
  const std::size_t far = this->far();
  add_parts(*fetch, space, text, most);
  if (!fetch->parts_.empty() && fetch->parts_.back().end <= held) fetch->parts_.clear();
  for (const StoredSnapshots::Place& place : snapshots.places) {
    PrefixFetch::Part snapshot{.key = place.key, .end = place.tokens};
    const bool near = find_near(snapshot);
    if (near || far < tiers_.size()) fetch->snapshots_.push_back(snapshot);
    if (near) break;  // shorter ones save less
  }
  const std::vector<PrefixFetch::Part*> wanted = fetch->candidates();
  if (wanted.empty()) return nullptr;
  if (std::shared_ptr<PrefixFetch> other = bringing(*fetch); other != nullptr) {
    *shared = true;
    return other;
  }
  fetch->salt_ = space.salt;
  fetch->codec_ = space.codec;
  fetch->adapters_ = space.adapters;
  fetch->stored_ = std::move(snapshots);
  std::int64_t farthest = 0;
  std::vector<BlobKey> unknown;
  std::vector<PrefixFetch::Part*> asked;
  for (PrefixFetch::Part* part : wanted) {
    farthest = std::max(farthest, part->end);
    if (part->there) continue;
    unknown.push_back(part->key);
    asked.push_back(part);
  }
  fetch->text_.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(farthest));
  fetch->tokens_ = held;
  fetch->seconds_per_token_ = seconds_per_token;
  fetch->until_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kAskSeconds));
  if (unknown.empty()) {
    choose(*fetch);
    if (fetch->done()) return nullptr;
  } else {
    // Does not ask for what cannot be read in the time that computing it takes.
    Tier& tier = *tiers_[far];
    if (tier.queue.latency() >= seconds_per_token * static_cast<double>(farthest - held)) {
      ++tier.counts.skipped;
      tier.queue.doubt_figures();
      return nullptr;
    }
    const std::uint64_t tag = next_tag_++;
    readings_.emplace(tag, Reading{fetch, 0, std::move(asked)});
    tier.queue.sizes(tag, std::move(unknown));
  }
  fetches_.push_back(fetch);
  ask(fetch);
  return fetch;
}

// Keeps the first parts that are there, or the snapshot, whichever saves more time over computing the tokens; ends the
// fetch where neither saves any.
void PrefixTiers::choose(PrefixFetch& fetch) {
  std::size_t parts = 0;
  double read = 0;
  std::vector<char> begun(tiers_.size(), 0);
  double best = 0;  // seconds saved
  Tier* slow = nullptr;
  const auto won = [&](const PrefixFetch::Part& part, double seconds) {
    const double more = fetch.seconds_per_token_ * static_cast<double>(part.end - fetch.tokens_) - seconds;
    if (more <= best) slow = &*tiers_[part.tier];
    return std::exchange(best, std::max(best, more)) < more;
  };
  for (std::size_t i = 0; i < fetch.parts_.size() && fetch.parts_[i].there; ++i) {
    const PrefixFetch::Part& part = fetch.parts_[i];
    const BlobQueue& queue = tiers_[part.tier]->queue;
    read += queue.cost(part.bytes) - (std::exchange(begun[part.tier], 1) != 0 ? queue.latency() : 0);
    if (won(part, read)) parts = i + 1;
  }
  const PrefixFetch::Part* snapshot = nullptr;
  for (const PrefixFetch::Part& each : fetch.snapshots_)
    if (each.there && won(each, tiers_[each.tier]->queue.cost(each.bytes))) snapshot = &each;
  if (best == 0 && slow != nullptr) {
    ++slow->counts.skipped;
    slow->queue.doubt_figures();
  }
  fetch.parts_.resize(parts);
  if (snapshot != nullptr) {
    fetch.parts_.assign(1, *snapshot);
    fetch.is_snapshot_ = true;
  }
  fetch.snapshots_.clear();
  fetch.state_ = PrefixFetch::State::kReading;
  if (fetch.parts_.empty()) return end(fetch);
  const double compute = fetch.seconds_per_token_ * static_cast<double>(fetch.parts_.back().end - fetch.tokens_);
  fetch.until_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kPatience * compute));
}

void PrefixTiers::end(PrefixFetch& fetch) {
  fetch.state_ = PrefixFetch::State::kDone;
}

// Requests further parts, as far as there are buffers.
void PrefixTiers::ask(const std::shared_ptr<PrefixFetch>& fetch) {
  if (fetch->state_ != PrefixFetch::State::kReading) return;
  for (; fetch->next_ < fetch->parts_.size(); ++fetch->next_) {
    const PrefixFetch::Part& part = fetch->parts_[fetch->next_];
    Tier& tier = *tiers_[part.tier];
    const auto bytes = static_cast<std::size_t>(part.bytes);
    if (tier.reading > 0 && tier.reading + bytes > kBufferBytes) return;
    tier.reading += bytes;
    ++fetch->under_way_;
    const std::uint64_t tag = next_tag_++;
    readings_.emplace(tag, Reading{fetch, fetch->next_, {}});
    // readings_ keeps the fetch alive until the answer is processed.
    const std::span<const TokenId> text = text_of(*fetch, part);
    BlobQueue::Check check;
    if (fetch->is_snapshot_) {
      check = [key = part.key, text](std::span<const std::byte> got) { return read_image(key, text, got).status(); };
    } else {
      check = [shape = fetch->shape_, key = part.key, text](std::span<const std::byte> got) {
        return read_part(shape, key, text, got).status();
      };
    }
    tier.queue.read(tag, part.key, new_buffer(bytes), std::move(check));
  }
}

bool PrefixTiers::busy() const {
  return !readings_.empty() || !arrived_.empty() ||
         std::ranges::any_of(tiers_, [](const std::unique_ptr<Tier>& tier) { return tier->writing > 0; });
}

void PrefixTiers::wait(std::chrono::milliseconds most) {
  if (!arrived_.empty() || tiers_.empty()) return;
  // Only one store can be waited for at a time: waits a little for each in turn.
  const auto each = tiers_.size() == 1 ? most : std::min(most, std::chrono::milliseconds(1));
  for (std::size_t t = 0; t < tiers_.size(); ++t)
    for (BlobAnswer& answer : tiers_[t]->queue.answers(each)) arrived_.emplace_back(t, std::move(answer));
}

void PrefixTiers::advance() {
  wait(std::chrono::milliseconds(0));
  std::uint64_t bytes = 0;
  std::size_t taken = 0;
  for (; taken < arrived_.size() && bytes < kBytesAtOnce; ++taken) {
    auto& [tier, answer] = arrived_[taken];
    if (answer.kind == BlobAnswer::Kind::kRead) bytes += answer.buffer->size();
    take(tier, answer);
  }
  arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(taken));
  const auto now = Clock::now();
  for (const std::shared_ptr<PrefixFetch>& fetch : fetches_) {
    // No request waits for it any more, or computing is as fast.
    if (!fetch->done() &&
        (fetch.use_count() == 1 + fetch->under_way_ + (fetch->state_ == PrefixFetch::State::kAsking) ||
         now >= fetch->until_)) {
      if (now >= fetch->until_) {
        Tier& tier = *tiers_[fetch->state_ == PrefixFetch::State::kAsking ? tiers_.size() - 1 : fetch->parts_[0].tier];
        ++tier.counts.abandoned;
      }
      end(*fetch);
    }
    ask(fetch);
  }
  std::erase_if(fetches_, [](const std::shared_ptr<PrefixFetch>& fetch) { return fetch->done(); });
}

void PrefixTiers::take(std::size_t tier, BlobAnswer& answer) {
  Tier& of = *tiers_[tier];
  const bool missing = answer.status.code() == StatusCode::kNotFound;
  if (!answer.status.ok() && !missing) {
    ++of.counts.failures;
    const std::string_view name = of.queue.store().name();
    if (answer.status.code() == StatusCode::kDataLoss) {
      if (warn_) warn_(fmt::format("a prefix of {} is not used, and is removed: {}", name, answer.status.message()));
    } else if (!std::exchange(of.failing, true) && warn_) {
      warn_(fmt::format("prefixes of {} fail: {}", name, answer.status.message()));
    }
  }
  if (answer.status.ok()) of.failing = false;
  if (answer.kind == BlobAnswer::Kind::kWrite) {
    of.writing -= answer.buffer->size();
    of.being_written.erase(answer.key.text.low);
    if (answer.status.ok()) {
      ++of.counts.stores;
      of.counts.bytes_stored += answer.buffer->size();
    } else {
      of.known.erase(answer.key.text.low);
    }
    buffers_.keep(std::move(answer.buffer));
    return;
  }
  const auto found = readings_.find(answer.tag);
  const Reading reading = std::move(found->second);
  readings_.erase(found);
  if (answer.kind == BlobAnswer::Kind::kSizes) return take_sizes(tier, answer, *reading.fetch, reading.asked);
  of.reading -= answer.buffer->size();
  --reading.fetch->under_way_;
  take_part(tier, answer, *reading.fetch, reading.part);
  buffers_.keep(std::move(answer.buffer));
}

void PrefixTiers::take_sizes(std::size_t tier, const BlobAnswer& answer, PrefixFetch& fetch,
                             const std::vector<PrefixFetch::Part*>& asked) {
  for (std::size_t i = 0; i < asked.size() && answer.status.ok(); ++i) {
    PrefixFetch::Part& part = *asked[i];
    note_size(part, answer.sizes[i], tier);
    // A blob of another size is written anew.
    if (part.there) {
      tiers_[tier]->remember(part.key);
    } else {
      tiers_[tier]->known.erase(part.key.text.low);
    }
  }
  if (!fetch.done()) choose(fetch);
}

void PrefixTiers::take_part(std::size_t tier, BlobAnswer& answer, PrefixFetch& fetch, std::size_t part) {
  Tier& of = *tiers_[tier];
  if (!answer.status.ok()) of.known.erase(answer.key.text.low);
  if (fetch.done()) return;
  if (!answer.status.ok()) return end(fetch);
  ++of.counts.loads;
  of.counts.bytes_loaded += answer.buffer->size();
  const PrefixFetch::Part& read = fetch.parts_[part];
  const std::span<const TokenId> text = text_of(fetch, read);
  if (fetch.is_snapshot_) {
    if (!fetch.stored_.add(text, answer.buffer->bytes())) return end(fetch);
    of.counts.tokens_loaded += read.end - fetch.tokens_;
  } else {
    const PartShape& shape = fetch.shape_;
    const auto pages = read_part(shape, answer.key, text, answer.buffer->bytes());
    if (!pages.ok() || !add_to_cache(fetch, part, *pages)) return end(fetch);
    of.counts.tokens_loaded += read.end - std::max(fetch.tokens_, read.end - shape.tokens());
  }
  fetch.tokens_ = read.end;
  if (fetch.from_.empty() || tier + 1 == tiers_.size()) fetch.from_ = of.queue.store().name();
  if (++fetch.added_ == fetch.parts_.size()) end(fetch);
}

// Returns false if there is no room, or the cache has lost an earlier block.
bool PrefixTiers::add_to_cache(PrefixFetch& fetch, std::size_t part, std::span<const std::byte> pages) {
  const PartShape& shape = fetch.shape_;
  const std::int64_t first = (fetch.first_ + static_cast<std::int64_t>(part)) * shape.blocks;
  PagePool& pool = kv_->pool();
  std::vector<PageId> ids(static_cast<std::size_t>(shape.blocks) * shape.lanes);
  if (!kv_->budget().make_available(ids.size() * pool.page_cost(fetch.class_))) return false;
  if (!pool.try_allocate(ids, PageOwner::kNobody, fetch.class_, PageContent::kUndefined)) return false;
  for (std::size_t i = 0; i < ids.size(); ++i)
    pool.store()->write(ids[i], pages.subspan(i * shape.page_bytes, shape.page_bytes));
  const bool added = cache_->add_blocks(fetch.space(), text_of(fetch, fetch.parts_[part]), first, ids, {});
  for (const PageId page : ids) pool.release(page);
  return added;
}

void PrefixTiers::leave(const PrefixSpace& space, std::span<const TokenId> text, std::int64_t from) {
  const std::optional<Form> form = form_of(space);
  if (!form) return;
  const PartShape& shape = form->shape;
  for (std::int64_t part = from / shape.tokens(); (part + 1) * shape.tokens() <= std::ssize(text); ++part) {
    const std::size_t bytes = shape.bytes(part);
    const BlobKey key = part_key(shape, space.salt, text, part);
    const std::vector<Tier*> to = room_for(without(key), bytes);
    if (to.empty()) continue;
    const std::vector<PageId> pages = cache_->pages_of_blocks(space, text, part * shape.blocks, shape.blocks);
    if (pages.empty()) return;
    const std::shared_ptr<BlobBuffer> buffer = new_buffer(bytes);
    std::span<std::byte> out = begin_part(shape, key, text, part, buffer->bytes());
    for (const PageId page : pages) {
      kv_->pool().store()->read(page, out.first(shape.page_bytes));
      out = out.subspan(shape.page_bytes);
    }
    seal_part(buffer->bytes());
    write(to, key, buffer);
  }
}

void PrefixTiers::leave_snapshot(const BlobKey& key, const std::function<std::pair<std::size_t, WriteImage>()>& make) {
  const std::vector<Tier*> lacking = without(key);
  if (lacking.empty()) return;
  const auto [bytes, image] = make();
  const std::vector<Tier*> to = room_for(lacking, bytes);
  if (to.empty() || bytes > kBufferBytes) return;
  const std::shared_ptr<BlobBuffer> buffer = new_buffer(bytes);
  image(buffer->bytes());
  write(to, key, buffer);
}

// Returns the stores that can be written to and do not have the key.
std::vector<PrefixTiers::Tier*> PrefixTiers::without(const BlobKey& key) const {
  std::vector<Tier*> lacking;
  for (const std::unique_ptr<Tier>& tier : tiers_)
    if (tier->queue.store().usable() && !tier->holds(key)) lacking.push_back(tier.get());
  return lacking;
}

// Returns those of the stores that may use `bytes` more bytes of buffers.
std::vector<PrefixTiers::Tier*> PrefixTiers::room_for(std::vector<Tier*> tiers, std::size_t bytes) {
  std::erase_if(tiers, [=](const Tier* tier) { return tier->writing > 0 && tier->writing + bytes > kBufferBytes; });
  return tiers;
}

void PrefixTiers::write(const std::vector<Tier*>& to, const BlobKey& key, const std::shared_ptr<BlobBuffer>& buffer) {
  for (Tier* tier : to) {
    tier->remember(key);
    tier->being_written.insert(key.text.low);
    tier->writing += buffer->size();
    tier->queue.write(next_tag_++, key, buffer);
  }
}

std::vector<PrefixTierReport> PrefixTiers::report() const {
  std::vector<PrefixTierReport> reports;
  for (const std::unique_ptr<Tier>& tier : tiers_) {
    PrefixTierReport report = tier->counts;
    const BlobUsage usage = tier->queue.store().usage();
    report.name = tier->queue.store().name();
    report.parts = usage.blobs;
    report.bytes = usage.bytes;
    report.capacity = usage.capacity;
    report.usable = tier->queue.store().usable();
    report.rate = tier->queue.rate();
    report.latency = tier->queue.latency();
    reports.push_back(report);
  }
  return reports;
}

}  // namespace kvasir

#include "engine/prefix_tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

// Bytes that advance() copies into pages, about.
constexpr std::uint64_t kBytesAtOnce = std::uint64_t{16} << 20;

// Keys that a store is known to hold, at most; then all are forgotten.
constexpr std::size_t kMostKnown = 65536;

// A request waits for the answer whether a store has its tokens no longer than this.
constexpr double kAskSeconds = 0.1;

// And for the tokens themselves, in times of what computing them takes.
constexpr double kPatience = 1.0;

}  // namespace

PrefixTiers::PrefixTiers(PrefixCache* cache, KvCache* kv, std::vector<Form> forms,
                         std::vector<std::unique_ptr<BlobStore>> stores, Warn warn)
    : cache_(cache), kv_(kv), warn_(std::move(warn)), forms_(std::move(forms)) {
  for (std::unique_ptr<BlobStore>& store : stores) tiers_.push_back(std::make_unique<Tier>(std::move(store)));
}

const PrefixTiers::Form* PrefixTiers::form_of(const PrefixSpace& space) const {
  const auto found = std::ranges::find(forms_, space.codec, &Form::codec);
  return found == forms_.end() ? nullptr : &*found;
}

std::span<const TokenId> PrefixTiers::text_of(const PrefixFetch& fetch, std::size_t part) {
  const std::int64_t tokens = (fetch.first_ + static_cast<std::int64_t>(part) + 1) * fetch.shape_.tokens();
  return std::span(fetch.text_).first(static_cast<std::size_t>(tokens));
}

bool PrefixTiers::stored(Tier& tier, const BlobKey& key) const {
  if (tier.being_written.contains(key.text.low)) return true;
  if (!tier.queue.store().answers_at_once()) return tier.known.contains(key.text.low);
  const auto sizes = tier.queue.store().sizes(std::span(&key, 1));
  return sizes.ok() && sizes->front() > 0;
}

void PrefixTiers::remember(Tier& tier, const BlobKey& key) {
  if (tier.queue.store().answers_at_once()) return;
  if (tier.known.size() >= kMostKnown) tier.known.clear();
  tier.known.insert(key.text.low);
}

std::shared_ptr<BlobBuffer> PrefixTiers::buffer(std::size_t bytes) {
  std::shared_ptr<BlobBuffer> buffer;
  // One that both stores write is free when both have.
  const auto found = std::ranges::find_if(idle_, [](const auto& each) { return each.use_count() == 1; });
  if (found != idle_.end()) {
    buffer = std::move(*found);
    idle_.erase(found);
  } else {
    buffer = std::make_shared<BlobBuffer>();
    std::erase_if(buffers_, [](const auto& each) { return each.expired(); });
    buffers_.push_back(buffer);
  }
  buffer->memory.ensure(bytes);
  buffer->size = bytes;
  return buffer;
}

void PrefixTiers::keep(std::shared_ptr<BlobBuffer> buffer) {
  if (std::ranges::find(idle_, buffer) == idle_.end()) idle_.push_back(std::move(buffer));
}

std::shared_ptr<PrefixFetch> PrefixTiers::fetch(const PrefixSpace& space, std::span<const TokenId> text,
                                                std::int64_t held, std::int64_t most, double seconds_per_token,
                                                bool* shared) {
  *shared = false;
  const Form* form = form_of(space);
  if (form == nullptr) return nullptr;
  const PartShape& shape = form->shape;
  const std::int64_t first = cache_->blocks_held(space, text) / shape.blocks;
  const std::int64_t end = std::min(most, std::ssize(text)) / shape.tokens();
  auto fetch = std::make_shared<PrefixFetch>();
  std::vector<BlobKey> unknown;
  std::vector<std::size_t> asked;
  std::size_t far = tiers_.size();  // that answers later
  for (std::size_t t = 0; t < tiers_.size(); ++t)
    if (!tiers_[t]->queue.store().answers_at_once() && tiers_[t]->queue.store().usable()) far = t;
  for (std::int64_t part = 0; part < end; ++part) {
    PrefixFetch::Part wanted{part_key(shape, space.salt, text, part)};
    for (std::size_t t = 0; t < tiers_.size() && !wanted.there; ++t) {
      BlobStore& store = tiers_[t]->queue.store();
      if (!store.answers_at_once()) continue;
      const auto sizes = store.sizes(std::span(&wanted.key, 1));
      wanted.there = sizes.ok() && sizes->front() == shape.bytes(part);
      wanted.tier = t;
      if (wanted.there) store.touch(wanted.key);
    }
    if (part < first) continue;
    if (!wanted.there && far == tiers_.size()) break;
    if (!wanted.there) {
      unknown.push_back(wanted.key);
      asked.push_back(fetch->parts_.size());
    }
    fetch->parts_.push_back(wanted);
  }
  if (fetch->parts_.empty() || (first + std::ssize(fetch->parts_)) * shape.tokens() <= held) return nullptr;
  for (const std::shared_ptr<PrefixFetch>& other : fetches_)
    if (std::ranges::any_of(other->parts_, [&](const auto& p) { return p.key.text == fetch->parts_[0].key.text; })) {
      *shared = true;
      return other;
    }
  fetch->shape_ = shape;
  fetch->class_ = form->of;
  fetch->salt_ = space.salt;
  fetch->codec_ = space.codec;
  const auto tokens = static_cast<std::size_t>((first + std::ssize(fetch->parts_)) * shape.tokens());
  fetch->text_.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(tokens));
  fetch->first_ = first;
  fetch->tokens_ = held;
  fetch->seconds_per_token_ = seconds_per_token;
  fetch->until_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kAskSeconds));
  if (unknown.empty()) {
    choose(*fetch);
    if (fetch->done()) return nullptr;
  } else {
    // What is not to be had in the time that computing takes need not be asked for.
    const double compute =
        seconds_per_token * static_cast<double>(fetch->parts_.size()) * static_cast<double>(shape.tokens());
    Tier& tier = *tiers_[far];
    if (tier.queue.latency() >= compute) {
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

// Keeps the first parts that are there and faster read than computed; ends the fetch where there are none.
void PrefixTiers::choose(PrefixFetch& fetch) {
  const PartShape& shape = fetch.shape_;
  std::size_t parts = 0;
  double read = 0;
  std::vector<char> begun(tiers_.size(), 0);
  double best = 0;  // seconds won
  Tier* slow = nullptr;
  for (std::size_t i = 0; i < fetch.parts_.size() && fetch.parts_[i].there; ++i) {
    Tier& tier = *tiers_[fetch.parts_[i].tier];
    const std::uint64_t bytes = shape.bytes(fetch.first_ + static_cast<std::int64_t>(i));
    read += tier.queue.cost(bytes) - (std::exchange(begun[fetch.parts_[i].tier], 1) != 0 ? tier.queue.latency() : 0);
    const double won = fetch.seconds_per_token_ * static_cast<double>((i + 1) * shape.tokens()) - read;
    if (won > best) {
      best = won;
      parts = i + 1;
    } else {
      slow = &tier;
    }
  }
  if (parts == 0 && slow != nullptr) {
    ++slow->counts.skipped;
    slow->queue.doubt_figures();
  }
  fetch.parts_.resize(parts);
  fetch.state_ = PrefixFetch::State::kReading;
  if (parts == 0) return end(fetch);
  const double compute = fetch.seconds_per_token_ * static_cast<double>(parts) * static_cast<double>(shape.tokens());
  fetch.until_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kPatience * compute));
}

void PrefixTiers::end(PrefixFetch& fetch) {
  fetch.state_ = PrefixFetch::State::kDone;
}

// Asks for further parts, as far as there are buffers.
void PrefixTiers::ask(const std::shared_ptr<PrefixFetch>& fetch) {
  if (fetch->state_ != PrefixFetch::State::kReading) return;
  for (; fetch->next_ < fetch->parts_.size(); ++fetch->next_) {
    const PrefixFetch::Part& part = fetch->parts_[fetch->next_];
    Tier& tier = *tiers_[part.tier];
    const std::size_t bytes = fetch->shape_.bytes(fetch->first_ + static_cast<std::int64_t>(fetch->next_));
    if (tier.reading > 0 && tier.reading + bytes > kBufferBytes) return;
    tier.reading += bytes;
    ++fetch->under_way_;
    const std::uint64_t tag = next_tag_++;
    readings_.emplace(tag, Reading{fetch, fetch->next_, {}});
    // The fetch lives in readings_ until the answer is taken.
    const std::span<const TokenId> text = text_of(*fetch, fetch->next_);
    tier.queue.read(tag, part.key, buffer(bytes),
                    [shape = fetch->shape_, key = part.key, text](std::span<const std::byte> got) {
                      return read_part(shape, key, text, got).status();
                    });
  }
}

bool PrefixTiers::busy() const {
  return !readings_.empty() || !arrived_.empty() ||
         std::ranges::any_of(tiers_, [](const std::unique_ptr<Tier>& tier) { return tier->writing > 0; });
}

void PrefixTiers::wait(std::chrono::milliseconds most) {
  if (!arrived_.empty() || tiers_.empty()) return;
  // Of several stores only one can be waited for: a little for each.
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
    if (answer.kind == BlobAnswer::Kind::kRead) bytes += answer.buffer->size;
    take(tier, answer);
  }
  arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(taken));
  const auto now = Clock::now();
  for (const std::shared_ptr<PrefixFetch>& fetch : fetches_) {
    // Nobody waits for it any more, or computing is as fast.
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
    of.writing -= answer.buffer->size;
    of.being_written.erase(answer.key.text.low);
    if (answer.status.ok()) {
      ++of.counts.stores;
      of.counts.bytes_stored += answer.buffer->size;
    } else {
      of.known.erase(answer.key.text.low);
    }
    keep(std::move(answer.buffer));
    return;
  }
  const auto found = readings_.find(answer.tag);
  const Reading reading = std::move(found->second);
  readings_.erase(found);
  if (answer.kind == BlobAnswer::Kind::kSizes) return take_sizes(tier, answer, *reading.fetch, reading.asked);
  of.reading -= answer.buffer->size;
  --reading.fetch->under_way_;
  take_part(tier, answer, *reading.fetch, reading.part);
  keep(std::move(answer.buffer));
}

void PrefixTiers::take_sizes(std::size_t tier, const BlobAnswer& answer, PrefixFetch& fetch,
                             const std::vector<std::size_t>& asked) {
  for (std::size_t i = 0; i < asked.size() && answer.status.ok(); ++i) {
    PrefixFetch::Part& part = fetch.parts_[asked[i]];
    part.there = answer.sizes[i] == fetch.shape_.bytes(fetch.first_ + static_cast<std::int64_t>(asked[i]));
    part.tier = tier;
    // One of another size is written anew.
    if (part.there) {
      remember(*tiers_[tier], part.key);
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
  of.counts.bytes_loaded += answer.buffer->size;
  const PartShape& shape = fetch.shape_;
  const auto pages = read_part(shape, answer.key, text_of(fetch, part), answer.buffer->bytes());
  if (!pages.ok() || !add_to_cache(fetch, part, *pages)) return end(fetch);
  const std::int64_t tokens = (fetch.first_ + static_cast<std::int64_t>(part) + 1) * shape.tokens();
  of.counts.tokens_loaded += tokens - std::max(fetch.tokens_, tokens - shape.tokens());
  fetch.tokens_ = tokens;
  if (fetch.from_.empty() || tier + 1 == tiers_.size()) fetch.from_ = of.queue.store().name();
  if (++fetch.added_ == fetch.parts_.size()) end(fetch);
}

// False: there is no room, or the cache has lost what comes before it.
bool PrefixTiers::add_to_cache(PrefixFetch& fetch, std::size_t part, std::span<const std::byte> pages) {
  const PartShape& shape = fetch.shape_;
  const std::int64_t first = (fetch.first_ + static_cast<std::int64_t>(part)) * shape.blocks;
  PagePool& pool = kv_->pool();
  std::vector<PageId> ids(static_cast<std::size_t>(shape.blocks) * shape.lanes);
  if (!kv_->budget().make_available(ids.size() * pool.page_cost(fetch.class_))) return false;
  if (!pool.try_allocate(ids, PageOwner::kNobody, fetch.class_, PageContent::kUndefined)) return false;
  for (std::size_t i = 0; i < ids.size(); ++i)
    pool.store()->write(ids[i], pages.subspan(i * shape.page_bytes, shape.page_bytes));
  const bool added = cache_->add_blocks(fetch.space(), text_of(fetch, part), first, ids, {});
  for (const PageId page : ids) pool.release(page);
  return added;
}

void PrefixTiers::leave(const PrefixSpace& space, std::span<const TokenId> text, std::int64_t from) {
  const Form* form = form_of(space);
  if (form == nullptr) return;
  const PartShape& shape = form->shape;
  for (std::int64_t part = from / shape.tokens(); (part + 1) * shape.tokens() <= std::ssize(text); ++part) {
    const std::size_t bytes = shape.bytes(part);
    const BlobKey key = part_key(shape, space.salt, text, part);
    std::vector<Tier*> to;
    for (const std::unique_ptr<Tier>& tier : tiers_) {
      if (tier->writing > 0 && tier->writing + bytes > kBufferBytes) continue;
      if (tier->queue.store().usable() && !stored(*tier, key)) to.push_back(tier.get());
    }
    if (to.empty()) continue;
    const std::vector<PageId> pages = cache_->pages_of_blocks(space, text, part * shape.blocks, shape.blocks);
    if (pages.empty()) return;
    const std::shared_ptr<BlobBuffer> buffer = this->buffer(bytes);
    std::span<std::byte> out = begin_part(shape, key, text, part, buffer->bytes());
    for (const PageId page : pages) {
      kv_->pool().store()->read(page, out.first(shape.page_bytes));
      out = out.subspan(shape.page_bytes);
    }
    seal_part(buffer->bytes());
    for (Tier* tier : to) {
      remember(*tier, key);
      tier->being_written.insert(key.text.low);
      tier->writing += bytes;
      tier->queue.write(next_tag_++, key, buffer);
    }
  }
}

std::uint64_t PrefixTiers::buffer_bytes() const {
  std::uint64_t bytes = 0;
  for (const std::weak_ptr<BlobBuffer>& each : buffers_)
    if (const auto buffer = each.lock()) bytes += buffer->memory.bytes();
  return bytes;
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

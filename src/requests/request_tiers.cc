// Requests whose prefixes come from outside memory, or go there.
#include <utility>

#include "base/status.h"
#include "prefix_store/snapshot_image.h"
#include "requests/request_members.h"
#include "requests/request_queue.h"

namespace kvasir {

void RequestQueue::store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn) {
  const LoadedModel& model = *driver_->model();
  KvCache& cache = *driver_->cache();
  std::vector<PrefixTiers::Form> forms;
  for (const KvCodec& codec : cache.codecs()) {
    // What such sequences leave are snapshots alone; exact pages of a text that is longer than a window are not whole.
    if (codec.recent > 0 || !cache.shape().windows.empty()) continue;
    PrefixUse use;
    use.codec = codec;
    const PageFormat page = cache.shape().with(codec).page;
    forms.push_back({std::string(prefixes_->space_of(use).codec),
                     part_shape(model.fingerprint.hex() + " " + model.arithmetic_id(page), page, cache.shape().lanes()),
                     cache.classes(codec).sealed});
  }
  tiers_ =
      std::make_unique<PrefixTiers>(&prefixes_->cache(), &cache, std::move(forms), std::move(stores), std::move(warn));
}

std::vector<PrefixTierReport> RequestQueue::tier_report() const {
  return tiers_ != nullptr ? tiers_->report() : std::vector<PrefixTierReport>();
}

void RequestQueue::settle_tiers(std::chrono::milliseconds most) {
  if (tiers_ == nullptr) return;
  tiers_->wait(most);
  tiers_->advance();
}

// Writes what a member has left in the prefix cache behind, but for what has a time to live: that ends in memory alone.
// `from`: tokens for which this was done before.
void RequestQueue::leave_outside(const Member& member, std::int64_t seen, std::int64_t from) {
  const PrefixUse& use = member.request->prefix;
  if (tiers_ == nullptr || use.bypass || use.ttl > 0) return;
  tiers_->leave(prefixes_->space_of(use), text_of(member).tokens.first(static_cast<std::size_t>(seen)), from);
}

// The same of a snapshot of the member as it is now, at a boundary of its prompt's chunks.
void RequestQueue::leave_snapshot_outside(const Member& member) {
  const PrefixUse& use = member.request->prefix;
  if (tiers_ == nullptr || use.ttl > 0) return;
  const Sequence& sequence = *member.text.sequence;
  const std::int64_t seen = sequence.tables().next_index();
  const PrefixText text = text_of(member);
  const BlobKey key = prefixes_->snapshot_key(use, text, seen);
  tiers_->leave_snapshot(key, [&] {
    const auto image = std::make_shared<ImageWriter>(sequence);
    const std::span<const TokenId> tokens = text.tokens.first(static_cast<std::size_t>(seen));
    return std::pair(image->bytes(tokens),
                     PrefixTiers::WriteImage([=](std::span<std::byte> out) { image->write(key, tokens, out); }));
  });
}

// Whether a member that may start now has tokens fetched first. It takes part in no pass until they are there.
bool RequestQueue::begin_fetch(Member& member) {
  const Request& request = *member.request;
  if (tiers_ == nullptr || member.asked_tiers || member.swap != nullptr) return false;
  if (request.base != nullptr || request.prefix.bypass) return false;
  const PrefixText text = text_of(member);
  const PassRates rates = admissions_.rates().rates();
  const int rows = admissions_.most().prompt_rows;
  const std::int64_t found = tokens_found(member);
  bool shared = false;
  member.fetch = tiers_->fetch(
      prefixes_->space_of(request.prefix), text.tokens, found, prefixes_->most_exact(request.prefix, text),
      prefixes_->stored_snapshots(request.prefix, text, found), rates.seconds(rows, 0) / rows, &shared);
  // A member that waited for another one's fetch still asks for the rest itself.
  member.asked_tiers = !shared;
  if (member.fetch != nullptr && member.found_before < 0) member.found_before = found;
  return member.fetch != nullptr;
}

bool RequestQueue::waits_for_fetch(Member& member) const {
  if (member.fetch == nullptr) return false;
  if (!member.fetch->done()) return true;
  if (!member.fetch->from().empty()) member.fetched_from = member.fetch->from();
  member.fetch.reset();
  return false;
}

}  // namespace kvasir

#include "requests/request_tiers.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "prefix_store/snapshot_image.h"
#include "requests/request_group.h"

namespace kvasir {

void RequestTiers::open(const BatchRunner& runner, PrefixStore* prefixes,
                        std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn) {
  KVASIR_CHECK(prefixes != nullptr);
  const LoadedModel& model = *runner.model();
  KvCache& cache = *runner.cache();
  std::vector<PrefixTiers::Form> forms;
  for (const KvCodec& codec : cache.codecs()) {
    // Sequences of such a codec leave only snapshots. So do texts that are longer than a window of some layers, and all
    // of a model whose layers hold states.
    if (codec.recent > 0 || !cache.shape().windows.empty() || !cache.shape().states.empty()) continue;
    PrefixUse use;
    use.codec = codec;
    const PageFormat page = cache.shape().with(codec).page;
    const std::string rotation = codec.long_rotation ? " rope=long" : "";
    forms.push_back(
        {std::string(prefixes->space_of(use).codec),
         part_shape(model.fingerprint.hex() + " " + model.arithmetic_id(page) + rotation, page, cache.shape().lanes()),
         cache.classes(codec).sealed});
  }
  prefixes_ = prefixes;
  tiers_ =
      std::make_unique<PrefixTiers>(&prefixes->cache(), &cache, std::move(forms), std::move(stores), std::move(warn));
}

bool RequestTiers::may_fetch(const Request& request) const {
  const RequestGroup& group = request.group();
  return tiers_ != nullptr && !request.prefix.asked_stores && !group.is_shadow() && group.session.base == nullptr &&
         !group.prefix.use.bypass;
}

bool RequestTiers::begin_fetch(Request& request, std::int64_t found, double seconds_per_token) {
  const RequestGroup& group = request.group();
  RequestPrefix& prefix = request.prefix;
  const PrefixText text = request.prefix_text();
  bool shared = false;
  std::shared_ptr<PrefixFetch> fetch = tiers_->fetch(
      prefixes_->space_of(group.prefix.use), text.tokens, found, prefixes_->most_exact(group.prefix.use, text),
      prefixes_->stored_snapshots(group.prefix.use, text, found), seconds_per_token, &shared);
  // A request that waited for another one's fetch still asks for the rest itself.
  prefix.asked_stores = !shared;
  if (fetch == nullptr) return false;
  if (prefix.found_before_fetch < 0) prefix.found_before_fetch = found;
  request.begin_fetch(std::move(fetch));
  return true;
}

bool RequestTiers::still_fetches(Request& request) {
  const PrefixFetch& fetch = request.fetch();
  if (!fetch.done()) return true;
  if (!fetch.from().empty()) request.prefix.fetched_from = fetch.from();
  request.end_fetch();
  return false;
}

void RequestTiers::write_pages(const Request& request, std::int64_t seen, std::int64_t from) {
  const PrefixUse& use = request.group().prefix.use;
  if (tiers_ == nullptr || use.bypass || use.ttl > 0) return;
  tiers_->leave(prefixes_->space_of(use), request.prefix_text().tokens.first(static_cast<std::size_t>(seen)), from);
}

void RequestTiers::write_snapshot(const Request& request) {
  const PrefixUse& use = request.group().prefix.use;
  if (tiers_ == nullptr || use.ttl > 0) return;
  const Sequence& sequence = *request.sequence();
  const std::int64_t seen = sequence.tables().next_index();
  const PrefixText text = request.prefix_text();
  const BlobKey key = prefixes_->snapshot_key(use, text, seen);
  tiers_->leave_snapshot(key, [&] {
    const auto image = std::make_shared<ImageWriter>(sequence);
    const std::span<const TokenId> tokens = text.tokens.first(static_cast<std::size_t>(seen));
    return std::pair(image->bytes(tokens),
                     PrefixTiers::WriteImage([=](std::span<std::byte> out) { image->write(key, tokens, out); }));
  });
}

void RequestTiers::advance() {
  if (tiers_ != nullptr) tiers_->advance();
}

void RequestTiers::wait(std::chrono::milliseconds most) {
  if (tiers_ != nullptr) tiers_->wait(most);
}

std::vector<PrefixTierReport> RequestTiers::report() const {
  return tiers_ != nullptr ? tiers_->report() : std::vector<PrefixTierReport>();
}

}  // namespace kvasir

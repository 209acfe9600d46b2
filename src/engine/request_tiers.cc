// Requests whose prefixes come from outside memory, or go there.
#include <utility>

#include "base/status.h"
#include "engine/request_members.h"
#include "engine/request_queue.h"

namespace kvasir {

Status RequestQueue::store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn) {
  const LoadedModel& model = *driver_->model();
  KvCache& cache = *driver_->cache();
  const std::string name = model.fingerprint.hex() + " " + model.arithmetic_id(cache.shape().page);
  KVASIR_ASSIGN_OR_RETURN(tiers_,
                          PrefixTiers::create(&prefixes_->cache(), &cache, name, std::move(stores), std::move(warn)));
  return {};
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
  tiers_->leave(use.salt, text_of(member).tokens.first(static_cast<std::size_t>(seen)), from);
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
  member.fetch = tiers_->fetch(request.prefix.salt, text.tokens, found, prefixes_->most_exact(request.prefix, text),
                               rates.seconds(rows, 0) / rows, &shared);
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

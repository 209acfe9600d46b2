#include "prefix/gone_blocks.h"

#include "base/check.h"

namespace kvasir {
namespace {

// The most blocks that are remembered.
constexpr std::size_t kMostGone = 16384;

}  // namespace

std::string_view prefix_miss_name(PrefixMiss miss) {
  switch (miss) {
    case PrefixMiss::kNone: return "";
    case PrefixMiss::kShort: return "too_short";
    case PrefixMiss::kUnknown: return "unknown";
    case PrefixMiss::kEvicted: return "evicted";
    case PrefixMiss::kExpired: return "expired";
    case PrefixMiss::kPolicy: return "policy";
    case PrefixMiss::kNoRoom: return "no_room";
    case PrefixMiss::kCodec: return "codec";
    case PrefixMiss::kThoughts: return "thoughts_dropped";
  }
  return "";
}

void GoneBlocks::remember(std::uint64_t hash, PrefixMiss why) {
  const auto [gone, added] = gone_.try_emplace(hash);
  gone->second.why = why;
  if (!added) return order_.splice(order_.end(), order_, gone->second.place);
  gone->second.place = order_.insert(order_.end(), hash);
  if (order_.size() <= kMostGone) return;
  gone_.erase(order_.front());
  order_.pop_front();
}

void GoneBlocks::forget(std::uint64_t hash) {
  const auto gone = gone_.find(hash);
  if (gone == gone_.end()) return;
  order_.erase(gone->second.place);
  gone_.erase(gone);
}

PrefixMiss GoneBlocks::reason(std::uint64_t hash) const {
  const auto gone = gone_.find(hash);
  return gone == gone_.end() ? PrefixMiss::kNone : gone->second.why;
}

void GoneBlocks::check_invariants() const {
  KVASIR_CHECK(gone_.size() == order_.size());
  for (const auto& [hash, gone] : gone_) KVASIR_CHECK(*gone.place == hash);
}

}  // namespace kvasir

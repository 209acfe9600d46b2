#include "prefix_store/thought_places.h"

namespace kvasir {
namespace {

std::uint64_t extended(std::uint64_t hash, TokenId token) {  // a step of splitmix64
  hash += 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(static_cast<std::uint32_t>(token));
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  return hash ^ (hash >> 31);
}

}  // namespace

void ThoughtPlaces::remember(const PrefixSpace& space, std::span<const TokenId> tokens) {
  std::uint64_t hash = PrefixTree::root_hash(space);
  for (const TokenId token : tokens) hash = extended(hash, token);
  if (!hashes_.insert(hash).second) return;
  order_.push_back(hash);
  if (order_.size() <= kMost) return;
  hashes_.erase(order_.front());
  order_.pop_front();
}

bool ThoughtPlaces::passed(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t from) const {
  if (hashes_.empty()) return false;
  std::uint64_t hash = PrefixTree::root_hash(space);
  std::int64_t size = 0;
  for (const TokenId token : tokens) {
    if (size >= from && hashes_.contains(hash)) return true;
    hash = extended(hash, token);
    ++size;
  }
  return false;
}

}  // namespace kvasir

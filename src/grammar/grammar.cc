#include "grammar/grammar.h"

#include <chrono>
#include <utility>

namespace kvasir {
namespace {

constexpr std::size_t kMostSpaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMostMaskBytes = std::size_t{16} << 20;
constexpr std::chrono::milliseconds kWarmTime{200};

}  // namespace

Grammar::Grammar(grammar::Machine machine, std::shared_ptr<const grammar::TokenTrie> trie)
    : machine_(std::move(machine)), trie_(std::move(trie)), interiors_(machine_, *trie_) {}

std::shared_ptr<Grammar::Space> Grammar::space() const {
  if (space_ == nullptr || space_->configurations.exhausted() || space_->configurations.bytes() > kMostSpaceBytes)
    space_ = std::make_shared<Space>(machine_);
  if (space_->masks.size() * trie_->words() * 8 > kMostMaskBytes) space_->masks.clear();
  return space_;
}

std::size_t Grammar::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = machine_.next.size() * sizeof(std::uint32_t) + interiors_.bytes();
  if (space_ != nullptr) bytes += space_->configurations.bytes() + space_->masks.size() * trie_->words() * 8;
  return bytes;
}

void Grammar::warm() const {
  const std::lock_guard lock(mutex_);
  interiors_.warm(std::chrono::steady_clock::now() + kWarmTime);
}

}  // namespace kvasir

#include "grammar/configurations.h"

#include <algorithm>

#include "base/hash.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostItems = 1000;
constexpr std::size_t kMostConfigurationBytes = std::size_t{128} << 20;

}  // namespace

std::size_t Configurations::Hash::operator()(const Configuration& configuration) const {
  return hash64(std::as_bytes(std::span(configuration.items)), configuration.complete ? 1 : 0);
}

std::size_t Configurations::Hash::operator()(const Stack& stack) const {
  return hash64(std::as_bytes(std::span(&stack, 1)));
}

Configurations::Configurations(const Machine& machine)
    : machine_(machine), classes_(static_cast<std::size_t>(machine.classes)), stacks_(1) {}

std::uint32_t Configurations::push(std::uint32_t state, std::uint32_t below) {
  const auto [found, added] = stack_ids_.try_emplace({state, below}, static_cast<std::uint32_t>(stacks_.size()));
  if (added) {
    stacks_.push_back({state, below});
    bytes_ += 64;
  }
  return found->second;
}

// Adds what follows an item by a call or by the end of its rule to `open_`.
void Configurations::leave(const Item& item) {
  for (const Machine::Call& call : machine_.calls_of(item.state)) {
    // A call at the end of a rule needs no way back, so recursion at the end takes no memory.
    const bool last = machine_.states[call.to].ends;
    open_.push_back({call.start, last ? item.stack : push(call.to, item.stack)});
  }
  if (!machine_.states[item.state].accepts) return;
  if (item.stack == 0) {
    complete_ = true;
  } else {
    open_.push_back({stacks_[item.stack].state, stacks_[item.stack].below});
  }
}

// Returns the configuration of `open_` and all that follows without a byte. `complete_` may be set before.
Configurations::Id Configurations::close() {
  closed_.clear();
  Configuration result;
  while (!open_.empty()) {
    const Item item = open_.back();
    open_.pop_back();
    if (steps_left_ <= closed_.size() || closed_.size() > kMostItems) {
      exhausted_ = true;
      open_.clear();
      return kNone;
    }
    steps_left_ -= 1 + closed_.size() / 8;
    if (std::find(closed_.begin(), closed_.end(), item) != closed_.end()) continue;
    closed_.push_back(item);
    if (machine_.states[item.state].live_bytes > 0) result.items.push_back(item);
    leave(item);
  }
  std::sort(result.items.begin(), result.items.end());
  result.complete = std::exchange(complete_, false);
  return intern(std::move(result));
}

Configurations::Id Configurations::intern(Configuration configuration) {
  if (configuration.items.empty() && !configuration.complete) return kNone;
  if (const auto found = ids_.find(configuration); found != ids_.end()) return found->second;
  bytes_ += 2 * configuration.items.size() * sizeof(Item) + classes_ * sizeof(Id) + 160;
  if (bytes_ > kMostConfigurationBytes) {
    exhausted_ = true;
    return kNone;
  }
  const auto id = static_cast<Id>(known_.size());
  known_.push_back(configuration);
  ids_.emplace(std::move(configuration), id);
  next_.resize(next_.size() + classes_, kUnknown);
  return id;
}

Configurations::Id Configurations::start() {
  open_.push_back({machine_.start, 0});
  return close();
}

Configurations::Id Configurations::behind(const Item& item) {
  leave(item);
  return close();
}

Configurations::Id Configurations::of(std::vector<Item> items) {
  std::sort(items.begin(), items.end());
  return intern({std::move(items), false});
}

Configurations::Id Configurations::find_step(Id from, std::uint8_t byte_class) {
  const std::size_t place = std::size_t{from} * classes_ + byte_class;
  for (const Item& item : known_[from].items) {
    const std::uint32_t to = machine_.next[std::size_t{item.state} * classes_ + byte_class];
    if (to != Machine::kDead) open_.push_back({to, item.stack});
  }
  if (open_.empty()) return next_[place] = kNone;
  const Id to = close();
  if (!exhausted_) next_[place] = to;
  return to;
}

std::uint32_t Configurations::import_stack(const Configurations& other, std::uint32_t stack) {
  std::vector<std::uint32_t> states;
  for (; stack != 0; stack = other.stacks_[stack].below) states.push_back(other.stacks_[stack].state);
  std::uint32_t copy = 0;
  for (std::size_t i = states.size(); i-- > 0;) copy = push(states[i], copy);
  return copy;
}

Configurations::Id Configurations::import(const Configurations& other, Id id) {
  if (id == kNone) return kNone;
  Configuration copy = other[id];
  for (Item& item : copy.items) item.stack = import_stack(other, item.stack);
  std::sort(copy.items.begin(), copy.items.end());
  return intern(std::move(copy));
}

}  // namespace kvasir::grammar

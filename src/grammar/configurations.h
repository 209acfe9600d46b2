// Where in a grammar a text may be: a set of states, each with the stack of rules that called each other on the way to
// it. Sets are numbered as they are met, and what a byte leads to is looked up from the second time on.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/machine.h"

namespace kvasir::grammar {

class Configurations {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = ~Id{0};  // no text of the grammar goes on so

  struct Item {
    std::uint32_t state = 0;
    std::uint32_t stack = 0;  // number of a stack; 0: empty
    bool operator==(const Item&) const = default;
    auto operator<=>(const Item&) const = default;
  };
  // `complete`: the text is one of the grammar.
  struct Configuration {
    std::vector<Item> items;  // states from which bytes lead on, in order
    bool complete = false;
    bool operator==(const Configuration&) const = default;
  };

  // `machine` must outlive this.
  explicit Configurations(const Machine& machine);

  Id start();
  // Returns what a byte of class `byte_class` leads to.
  Id step(Id from, std::uint8_t byte_class) {
    const Id known = next_[std::size_t{from} * classes_ + byte_class];
    return known != kUnknown ? known : find_step(from, byte_class);
  }
  // Returns what follows once `item` has left its state without a byte: by a call, or by the end of its rule.
  Id behind(const Item& item);
  // Returns the configuration of these items.
  Id of(std::vector<Item> items);
  // Returns the configuration that is `id` in `other`, which has the same machine.
  Id import(const Configurations& other, Id id);

  const Configuration& operator[](Id id) const { return known_[id]; }
  const Machine& machine() const { return machine_; }

  // Returns true once a configuration was too ambiguous to be kept, or memory or steps were exhausted. What the calls
  // return is wrong then.
  bool exhausted() const { return exhausted_; }
  // Grants the steps of the next operation.
  void grant(std::size_t steps) { steps_left_ = steps; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr Id kUnknown = kNone - 1;

  struct Stack {
    std::uint32_t state = 0;  // goes on here
    std::uint32_t below = 0;
    bool operator==(const Stack&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Configuration& configuration) const;
    std::size_t operator()(const Stack& stack) const;
  };

  std::uint32_t push(std::uint32_t state, std::uint32_t below);
  std::uint32_t import_stack(const Configurations& other, std::uint32_t stack);
  void leave(const Item& item);
  Id close();
  Id find_step(Id from, std::uint8_t byte_class);
  Id intern(Configuration configuration);

  const Machine& machine_;
  std::size_t classes_;
  std::vector<Stack> stacks_;
  std::unordered_map<Stack, std::uint32_t, Hash> stack_ids_;
  std::vector<Configuration> known_;
  std::unordered_map<Configuration, Id, Hash> ids_;
  std::vector<Id> next_;  // [configuration][class]
  // Scratch of close(): items to add, and those added.
  std::vector<Item> open_;
  std::vector<Item> closed_;
  bool complete_ = false;
  bool exhausted_ = false;
  std::size_t steps_left_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace kvasir::grammar

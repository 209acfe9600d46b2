// The interface of retention policies: deterministic functions of what they have seen to a plan of what to keep. A
// policy never touches a page; the same object serves the engine, replay and tests.
//
// Protocol, per sequence: before each forward pass the engine asks how many of the next tokens may share it
// (rows_together) and what is hidden from each (advance, once per token, in order); after the pass it asks what to drop
// (dropped). All decisions of this interface hold for every layer and head alike.
// Thread-safety: none; one policy object belongs to one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kv/lane_group.h"

namespace kvasir {

class RetentionPolicy {
 public:
  virtual ~RetentionPolicy() = default;

  // The spec string that makes an equal policy, options in their canonical order.
  virtual std::string spec() const = 0;

  virtual Realign realign() const { return Realign::kFrames; }

  // The most tokens a forward pass of one token sees; nullopt: without bound.
  virtual std::optional<std::int64_t> bound() const = 0;

  // How many of the next `want` tokens may run in one forward pass, at least 1. Fewer than `want` where the table's
  // frames change in between.
  virtual int rows_together(int want) const = 0;

  // Takes the next token in: returns the ids that its query does not see, because one-token-at-a-time processing would
  // have dropped them before it came; empty if none.
  virtual IdRange advance() = 0;

  // The ids dropped once all tokens taken in have passed: one range, growing only. Empty if none was.
  virtual IdRange dropped() const = 0;

  virtual std::unique_ptr<RetentionPolicy> clone() const = 0;
};

}  // namespace kvasir

// Chooses the tokens that the rows of one sequence read (Quest). It belongs to the sequence and is forked with it; its
// memory is part of the sequence's state.
//
// Its content must follow from the text, the policy's options and the pages. It is not saved: a sequence that comes
// back from a file, or continues the pages of another, begins with a fresh one.
// Thread-safety: one caller at a time, except for EntrySelector::select.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/page_access.h"
#include "kv/kv_cache.h"
#include "retention/policy.h"

namespace kvasir {

class SequenceSelector : public EntrySelector {
 public:
  // Rows [first, first + rows) of a chunk run next; the tables have room for them. Returns whether any of them chooses.
  virtual bool begin_pass(const PolicyChunk& chunk, int first, int rows) = 0;

  // Returns the selector of a fork. It may hold less than this one, and derive what is missing from the pages.
  virtual std::unique_ptr<SequenceSelector> clone() const = 0;

  virtual std::uint64_t bytes() const = 0;                         // allocated
  virtual std::uint64_t bytes_for(std::int64_t tokens) const = 0;  // bytes() after reserve(tokens)
  // Makes room for a text of `tokens` tokens; never shrinks. Called before the pass that runs them.
  virtual void reserve(std::int64_t tokens) = 0;

  // Returns how many tokens the newest generated row reads, as the mean over layers and KV heads; nullopt before one.
  virtual std::optional<double> tokens_read() const = 0;
};

// Makes the selector of a sequence under a policy, in a cache of this shape; null where rows read all that they see.
std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape);

}  // namespace kvasir

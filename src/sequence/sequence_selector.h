// What chooses the tokens that the rows of one sequence read (Quest): an entry selector that belongs to the sequence,
// is forked with it, and whose memory is part of the sequence's state.
//
// What it holds must follow from the text, the policy's options and the pages. It is not saved: a sequence that comes
// back from a file, or continues the pages of another, begins with a fresh one.
// Thread-safety: one caller at a time, but for EntrySelector::select.
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
  // Rows [first, first + rows) of a chunk run next, of a sequence whose tables have room for them. Returns whether any
  // of them chooses.
  virtual bool begin_pass(const PolicyChunk& chunk, int first, int rows) = 0;

  // The selector of a fork. It may hold less than this one, and derive what is missing from the pages.
  virtual std::unique_ptr<SequenceSelector> clone() const = 0;

  // Bytes allocated, and what they come to once reserve(tokens) was called.
  virtual std::uint64_t bytes() const = 0;
  virtual std::uint64_t bytes_for(std::int64_t tokens) const = 0;
  // Makes room for a text of so many tokens; never less than before. Called before the pass that runs them.
  virtual void reserve(std::int64_t tokens) = 0;

  // Tokens that the newest row that chose read, as the mean over layers and KV heads; nothing before there was one.
  virtual std::optional<double> tokens_read() const = 0;
};

// The selector of a sequence under a policy, in a cache of this shape; null where rows read all that they see.
std::unique_ptr<SequenceSelector> new_selector(const RetentionPolicy& policy, const KvCacheShape& shape);

}  // namespace kvasir

#include "retention/policy.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

RetentionPolicy::RetentionPolicy(PolicyTraits traits) : traits_(std::move(traits)) {
  KVASIR_CHECK(traits_.reductions.empty() || traits_.scope != PolicyScope::kSequence);
}

ContextUse RetentionPolicy::context_use() const {
  if (traits_.positions == PositionMode::kOriginal) return ContextUse::kText;
  if (bound()) return ContextUse::kNone;
  return traits_.compacts ? ContextUse::kHeld : ContextUse::kText;
}

void RetentionPolicy::hidden(const PolicyChunk& chunk, std::span<IndexRange> rows) const {
  KVASIR_CHECK(std::ssize(rows) == chunk.rows);
  std::ranges::fill(rows, IndexRange{});
}

bool RetentionPolicy::wants_row(const PolicyChunk& chunk, int row) const {
  for (int reduction = 0; reduction < std::ssize(traits_.reductions); ++reduction)
    if (wants(chunk, row, reduction)) return true;
  return false;
}

void RetentionPolicy::save(ByteWriter& out) const {
  out.put_string(traits_.spec);
  save_state(out);
}

Status RetentionPolicy::restore(ByteReader& in) {
  std::string spec;
  if (!in.get_string(spec)) return data_loss("the saved state of policy '{}' is cut off", traits_.spec);
  if (spec != traits_.spec) return data_loss("the saved state is not one of policy '{}'", traits_.spec);
  if (!restore_state(in)) return data_loss("the saved state of policy '{}' is damaged", traits_.spec);
  return {};
}

Result<std::unique_ptr<RetentionPolicy>> RetentionPolicy::as_part(PolicyPart) const {
  return invalid_argument("policy '{}' cannot be part of a composition; use it alone", traits_.spec);
}

}  // namespace kvasir

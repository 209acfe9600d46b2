// The view of a model that drafts its own next tokens: the first tokens of the text and the newest ones. All
// other tokens stay in the page tables, where the pass that checks the drafts reads them. Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

struct DraftView {
  std::int64_t sinks = 0;
  std::int64_t recent = 0;  // newest tokens, the one that runs included

  std::int64_t tokens() const { return sinks + recent; }
};

// Returns what a policy by range would keep, such as "streaming:cap=512". Errors: kInvalidArgument, for other policies
// too.
Result<DraftView> parse_draft_view(std::string_view policy);

}  // namespace kvasir

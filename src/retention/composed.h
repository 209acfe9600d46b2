// Two policies on one cache, `a+b`: the first prunes when a prompt ends, the second while tokens are generated. Both
// observe everything from the first token on, each what it asks for; what one drops is gone for the other.
// Thread-safety: as RetentionPolicy's.
#pragma once

#include <memory>

#include "kvasir/status.h"
#include "retention/policy.h"

namespace kvasir {

// The scope is the finer of both. full, window and streaming keep the first and the last of what each table holds.
// Errors: kInvalidArgument if the two do not go together; the message says why.
Result<std::unique_ptr<RetentionPolicy>> compose(const RetentionPolicy& first, const RetentionPolicy& second);

}  // namespace kvasir

// A sequence as bytes: everything but the content of its pages and of its layers' states (KvSequence::states). For
// session files and for swap.
// Thread-safety: none of its own.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "sequence/sequence.h"

namespace kvasir {

// Writes page tables, the policy's state and counters. REQUIRES: !in_chunk().
void write_sequence(const Sequence& sequence, ByteWriter& out);

// Reads them into an empty sequence of the same policy, whose pages and states then have no content. Checks that no
// table contradicts itself; see policy_agrees for the rest. Errors: kDataLoss, kResourceExhausted: the sequence can
// only be destroyed then.
Status read_sequence(ByteReader& in, Sequence* sequence);

// Whether the policy holds what the tables hold, or have given back.
bool policy_agrees(const Sequence& sequence);

// Its pages, in an order that write_sequence and read_sequence keep.
std::vector<PageId> pages_in_order(const Sequence& sequence);

}  // namespace kvasir

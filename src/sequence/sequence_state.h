// Writes and reads a sequence without the content of its pages and of its layers' states (KvSequence::states). For
// session files, stored snapshots and swap.
// Thread-safety: none of its own.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "sequence/sequence.h"

namespace kvasir {

// Writes page tables, the policy's state and counters. REQUIRES: !in_chunk().
void write_sequence(const Sequence& sequence, ByteWriter& out);

// Reads them into an empty sequence of the same policy, and charges their memory. Its pages and states then have no
// content. Checks that no table contradicts itself; see policy_agrees for the rest. Errors: kDataLoss,
// kResourceExhausted; the sequence can then only be destroyed.
Status read_sequence(ByteReader& in, Sequence* sequence);

// Returns whether the policy retains exactly the tokens that the tables hold or have given back.
bool policy_agrees(const Sequence& sequence);

// Returns the pages of all tables, in an order that read_sequence restores.
std::vector<PageId> pages_in_order(const Sequence& sequence);

}  // namespace kvasir

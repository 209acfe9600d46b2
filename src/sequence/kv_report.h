// What the KV of one sequence holds and costs.
// Thread-safety: as Sequence.
#pragma once

#include <cstdint>

#include "kvasir/result.h"
#include "sequence/sequence.h"

namespace kvasir {

KvReport kv_report(const Sequence& sequence);

// Bytes that are free once the sequence is gone: its tables, and the pages that nothing else refers to. With `beside`,
// the owner of a prefix cache, also the pages that only the prefix cache refers to besides: it can give them back.
std::uint64_t bytes_freed_without(const Sequence& sequence, PageOwner beside = PageOwner::kNobody);

}  // namespace kvasir

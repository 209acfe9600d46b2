// Reports what the KV memory of one sequence holds and costs.
// Thread-safety: as Sequence.
#pragma once

#include <cstdint>

#include "kvasir/result.h"
#include "sequence/sequence.h"

namespace kvasir {

KvReport kv_report(const Sequence& sequence);

// Returns the bytes that are free once the sequence is gone: its tables, and the pages that nothing else refers to.
// `beside`: the owner of a prefix cache; pages that only this cache refers to count too, since it can give them back.
std::uint64_t bytes_freed_without(const Sequence& sequence, PageOwner beside = PageOwner::kNobody);

}  // namespace kvasir

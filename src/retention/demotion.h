// Demotion: what becomes of the tokens that a policy drops, as an option of any policy that evicts.
//
//   h2o:budget=512,pos=original@demote=q4            kept in memory, in fewer bits
//   h2o:budget=512,pos=original@demote=file          moved to a file, as the cache stores them
//   h2o:budget=512,pos=original@demote=q4,file       both in turn
//
// The engine does the work (offload/demoted_pages.h, offload/recall.h); policies do not see it.
// Thread-safety: plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backend/page_format.h"
#include "kvasir/status.h"

namespace kvasir {

struct Demotion {
  static constexpr int kDefaultRecall = 4;
  static constexpr std::uint64_t kDefaultMemory = std::uint64_t{16} << 20;

  std::optional<KvType> type;   // of dropped keys and values; none: as the cache stores them
  bool file = false;            // pages leave memory for a file
  int recall = kDefaultRecall;  // pages that a row reads again at most, in each layer and KV head
  // With a file and a type: bytes of one sequence's newest pages that stay in memory; at least a page for each KV head
  // of each layer.
  std::uint64_t memory = kDefaultMemory;

  bool operator==(const Demotion&) const = default;
};

// Reads "q4", "file", "q4,file", each with ",recall=N" (1 to 8), and "q4,file" with ",memory=16MiB". Errors:
// kInvalidArgument, about "demote".
Result<Demotion> parse_demotion(std::string_view text);

// Returns the shortest text that parse_demotion reads as this demotion.
std::string demotion_text(const Demotion& demotion);

}  // namespace kvasir

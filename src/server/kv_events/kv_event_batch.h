// Collects and encodes KV events, which report the prefix cache to an external index in vLLM's format. kv_events.h
// sends them.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvasir::server {

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  std::vector<std::uint64_t> hashes;
  // For kStored, whose blocks are consecutive in one text:
  std::uint64_t parent = 0;          // hash of the block before the first; 0: the text begins here
  std::vector<std::int32_t> tokens;  // of all blocks, which have equal lengths
  // The published salt, then "kv.codec=NAME" unless that is the server's default, then "kv.adapters=KEY" of a text that
  // runs with adapters (adapter_key in runtime/adapters.h). Empty for a text without either, and
  // for blocks that do not begin their text.
  std::vector<std::string> salt;
};

struct KvEventBatch {
  double time = 0;  // seconds since 1970
  std::vector<KvEvent> events;
};

// Returns the approximate bytes of a batch in memory.
std::size_t bytes_of(const KvEventBatch& batch);

// Returns a batch as MessagePack: [time, [events], 0], where 0 is the rank among data-parallel engines. An event is
// ["BlockStored", hashes, parent or nil, tokens, block size, nil, "cpu", nil, extra keys or nil, nil], where the extra
// keys are one list a block (that of a text's first block has KvEvent::salt, the others are nil); ["BlockRemoved",
// hashes, "cpu", nil]; or ["AllBlocksCleared"].
std::string encode(const KvEventBatch& batch);

// Collects the events of a pass. Joins stored blocks that are consecutive, and successive removals.
class KvEventCollector {
 public:
  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens, std::string_view salt,
              std::string_view codec, std::string_view adapters = {});
  void removed(std::uint64_t hash);
  // Replaces the collected events by one that says that all blocks are gone.
  void clear();

  bool empty() const { return events_.empty(); }
  // Returns the events collected since the last call.
  KvEventBatch take(double time);

  // Returns the published form of a salt. A request's salt is the server's, which is secret and derived from the keys
  // file's secret, and behind a NUL the client's (`cache_salt`). The server's is replaced by a random name, used only
  // in this process, from which nothing can be derived. The client's is published unchanged, because a router knows it
  // from the request.
  std::vector<std::string> published(std::string_view salt);

 private:
  std::vector<KvEvent> events_;
  std::unordered_map<std::string, std::string> names_;  // random names of the server's salts
};

}  // namespace kvasir::server

// KV events: what an index outside hears of the prefix cache, as vLLM and those who read its events have them. Here
// they are collected and encoded; kv_events.h sends them.
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
  // Of kStored, whose blocks follow each other in one text:
  std::uint64_t parent = 0;          // hash of the block before the first; 0: the text begins here
  std::vector<std::int32_t> tokens;  // of all blocks, which are equally long
  // As published, and behind it "kv.codec=NAME" where that is not the server's default; empty for a text that has
  // neither or does not begin here.
  std::vector<std::string> salt;
};

struct KvEventBatch {
  double time = 0;  // seconds since 1970
  std::vector<KvEvent> events;
};

// Returns about as many bytes as a batch takes in memory.
std::size_t bytes_of(const KvEventBatch& batch);

// Returns a batch as MessagePack: [time, [events], 0], where 0 is the rank among data-parallel engines. An event is
// ["BlockStored", hashes, parent or nil, tokens, block size, nil, "cpu", nil, extra keys or nil, nil], where the extra
// keys are one list a block (that of a text's first block has KvEvent::salt, the others are nil); ["BlockRemoved",
// hashes, "cpu", nil]; or ["AllBlocksCleared"].
std::string encode(const KvEventBatch& batch);

// Collects the events of a pass. Neighbours are joined: blocks that follow each other, and removals.
class KvEventCollector {
 public:
  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens, std::string_view salt,
              std::string_view codec);
  void removed(std::uint64_t hash);
  // Forgets what was collected, and says that all blocks are gone.
  void clear();

  bool empty() const { return events_.empty(); }
  // Returns what was collected since the last call.
  KvEventBatch take(double time);

  // Returns what is published of a salt. That of a request is the server's, which is secret and derived from the API
  // key, and behind a NUL what its client chose (`cache_salt`). The server's is replaced by a random name, which stands
  // for it in this process alone and from which nothing can be derived; the client's is published as it is, because a
  // router knows it from the request.
  std::vector<std::string> published(std::string_view salt);

 private:
  std::vector<KvEvent> events_;
  std::unordered_map<std::string, std::string> names_;  // of salts of the server
};

}  // namespace kvasir::server

// Reports to an index outside the engine which prefixes the prefix cache holds.
//
// The prefix cache is a tree of blocks of tokens. Only exact blocks are reported: they hold the keys and values of
// every token, so any request may continue them as far as its policy allows. Snapshots of one policy's state are not.
// Thread-safety: called on the thread that calls the engine, during that call. A listener must not call the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvasir {

class PrefixListener {
 public:
  virtual ~PrefixListener() = default;
  // A block can be continued from now on. `hash` (never 0) identifies salt, codec, adapters and the tokens of this
  // block and of all blocks before it; `parent` is the hash of the block before, 0 for the first. A block is reported
  // after its parent. `salt`: RequestOptions::salt of requests that can continue it. `codec`: their codec; empty:
  // EngineOptions::kv_type. `adapters`: names the adapters that they run with, and their scales; empty: none.
  virtual void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens,
                      std::string_view salt, std::string_view codec, std::string_view adapters) = 0;
  // A stored block is gone. Its children were removed before it.
  virtual void removed(std::uint64_t hash) = 0;
};

}  // namespace kvasir

// Tells an index outside the engine which beginnings of texts the prefix cache holds.
//
// The prefix cache is a tree of blocks of tokens. A listener hears of exact blocks alone: their keys and values are
// those of every token, so any request may continue them as far as its policy allows. What one policy has made of a
// text is not reported.
// Thread-safety: called on the thread that calls the engine, in the midst of that call. A listener must not call the
// engine back.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvasir {

class PrefixListener {
 public:
  virtual ~PrefixListener() = default;
  // A block can be continued from now on. `hash` (never 0) stands for salt and codec, for this block's tokens and for
  // all blocks before it; `parent` is the hash of the block before, or 0 for a text's first. A block is reported after
  // its parent. `salt`: RequestOptions::salt of those who can continue it. `codec`: theirs; empty:
  // EngineOptions::kv_type.
  virtual void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens,
                      std::string_view salt, std::string_view codec) = 0;
  // A block that was stored is gone. Its children went before it.
  virtual void removed(std::uint64_t hash) = 0;
};

}  // namespace kvasir

// Why a generation ended.
// Thread-safety: plain values.
#pragma once

#include <string_view>

namespace kvasir {

enum class FinishReason {
  kEnd,        // the model ended its text
  kLength,     // max_tokens were generated
  kStop,       // a stop string or a stop token was generated
  kContext,    // under policy full: the model's trained context is exhausted
  kKvMemory,   // the KV budget is exhausted
  kCancelled,  // the caller asked to stop
  kFailed,     // an error: see GenerateResult::status
};

// Returns "end", "length", "stop", "context", "kv_memory", "cancelled" or "failed".
std::string_view finish_reason_name(FinishReason reason);

}  // namespace kvasir

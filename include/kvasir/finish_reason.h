// Why a generation ended.
// Thread-safety: plain values.
#pragma once

#include <string_view>

namespace kvasir {

enum class FinishReason {
  kEnd,        // the model ended its text
  kLength,     // max_tokens were generated
  kStop,       // a stop string came
  kContext,    // policy full: the model's trained context is exhausted
  kKvMemory,   // the KV budget is exhausted
  kCancelled,  // the caller asked to stop
  kFailed,     // it could not go on: GenerateResult::status says why
};

// Returns "end", "length", "stop", "context", "kv_memory", "cancelled" or "failed".
std::string_view finish_reason_name(FinishReason reason);

}  // namespace kvasir

// Reads what a request says about its KV cache: the objects "kv" and "kv_hints".
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvasir/request.h"
#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Reads "kv": {policy, codec, demote, thoughts, quality, pin, ttl, bypass, inspect}, and "lora" (fields/lora_field.h).
// Errors: kInvalidArgument.
Status read_kv(const Fields& body, RequestOptions& options);

// Hints of "kv_hints": {protocol_version, message_id, actions: [{action_id, action_type, action_version, payload}]}.
//   pin                the prefix that the request leaves is evicted last
//   retain             the same prefix can be continued for payload.ttl_seconds; without one, as long as there is room
//   demote, prefetch   change nothing: prefixes are written to disk and Redis at once, memory gives up the least
//                      recently used, and each request fetches its own prefix where that is faster
// Other actions, and all actions of a protocol version other than 0.x, are ignored.
struct KvHints {
  struct Action {
    std::string id;
    std::string type;
    std::string outcome;  // "applied", "no_op" or "ignored"
    std::string reason;   // why the outcome is not "applied"
  };
  bool given = false;
  std::string message_id;
  std::vector<Action> actions;
};

// Reads "kv_hints", and applies the actions that can be applied to `options`. Errors: kInvalidArgument if malformed.
Status read_kv_hints(const Fields& body, RequestOptions& options, KvHints& hints);

// Returns the object "kv_hints" of an answer.
nlohmann::json hints_answer(const KvHints& hints);

}  // namespace kvasir::server

// The engine's Session: one sequence, the conversation in it, and its generations.
// Thread-safety: as Session.
#pragma once

#include <memory>

#include "engine/loaded_model.h"
#include "engine/session_file.h"
#include "kv/kv_cache.h"
#include "kvasir/engine.h"
#include "retention/policy.h"

namespace kvasir {

// Makes an empty session that holds its tokens in `cache` under `policy`. It shares ownership of model and cache.
std::unique_ptr<Session> make_session(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                                      std::unique_ptr<RetentionPolicy> policy);

// The same of a session that was loaded.
Result<std::unique_ptr<Session>> make_session(LoadedSession loaded);

}  // namespace kvasir

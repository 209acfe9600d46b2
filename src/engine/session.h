// The engine's Session: one sequence, the conversation in it, and its generations.
// Thread-safety: as Session.
#pragma once

#include <memory>
#include <optional>

#include "engine/driver.h"
#include "engine/session_file.h"
#include "kvasir/engine.h"
#include "retention/policy.h"

namespace kvasir {

// Makes an empty session that holds its tokens in the driver's cache under `policy`. It shares ownership of the driver.
// `chunk`: of prompts, 0: the policy's own; without one, that of the engine's options.
std::unique_ptr<Session> make_session(std::shared_ptr<Driver> driver, std::unique_ptr<RetentionPolicy> policy,
                                      std::optional<int> chunk = {});

// The same of a session that was loaded into the driver's cache. Errors: kDataLoss.
Result<std::unique_ptr<Session>> make_session(std::shared_ptr<Driver> driver, LoadedSession loaded);

}  // namespace kvasir

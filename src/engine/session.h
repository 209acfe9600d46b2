// The engine's Session: one sequence, the conversation in it, and its generations.
// Thread-safety: as Session.
#pragma once

#include <memory>

#include "engine/driver.h"
#include "engine/session_file.h"
#include "kvasir/engine.h"
#include "retention/policy.h"

namespace kvasir {

// Makes an empty session that holds its tokens in the driver's cache under `policy`. It shares ownership of the driver.
std::unique_ptr<Session> make_session(std::shared_ptr<Driver> driver, std::unique_ptr<RetentionPolicy> policy);

// The same of a session that was loaded into the driver's cache. Errors: kDataLoss.
Result<std::unique_ptr<Session>> make_session(std::shared_ptr<Driver> driver, LoadedSession loaded);

}  // namespace kvasir

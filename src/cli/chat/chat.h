// A conversation on a terminal.
#pragma once

#include <memory>
#include <string>

#include "cli/run/run_options.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

// Holds the conversation until its user ends it, then saves it if the options say so. `documents`: text put before the
// first message. REQUIRES: standard input is a terminal; catch_interrupts() was called; the session is new or loaded.
// Errors: those of reading, generating and saving that end a chat; kCancelled, with an empty message, if SIGTERM or
// SIGHUP ended it.
Status chat(const RunOptions& options, Engine& engine, std::unique_ptr<Session> session, std::string documents);

}  // namespace kvasir::cli

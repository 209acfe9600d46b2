// Finds a command's model file: what -m names, or the default.
#pragma once

#include <string>

#include "cli/command.h"
#include "hub/environment.h"
#include "hub/pull.h"

namespace kvasir::cli {

// Returns the environment variables that src/hub reads.
hub::HubEnvironment hub_environment();

// Shows a download's progress on standard error, and ends it on an interrupt, which it catches while it lives.
class PullWatch {
 public:
  PullWatch();
  PullWatch(const PullWatch&) = delete;
  PullWatch& operator=(const PullWatch&) = delete;
  ~PullWatch();
  hub::PullOptions options();

 private:
  void show(std::uint64_t done, std::uint64_t total);

  std::optional<ProgressBar> bar_;
  std::optional<std::uint64_t> before_;  // bytes present at the start
  double started_ = 0;
};

// Replaces -m of the parsed command by a path: fetches a model of the hub, and takes the default if none is given. Does
// nothing for commands without a model. Errors: those of hub::resolve_model and hub::default_model.
Status resolve_model_option(CLI::App& program);

// Returns the name of a model for clients of a server, from `typed` and the file's `path`: without folder and ending,
// and without the part number of a split file.
std::string model_title(const std::string& typed, const std::string& path);

}  // namespace kvasir::cli

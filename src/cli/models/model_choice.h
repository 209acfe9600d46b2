// Which file a command's model is: what -m names, or the default.
#pragma once

#include <string>

#include "cli/command.h"
#include "hub/environment.h"
#include "hub/pull.h"

namespace kvasir::cli {

// The variables that src/hub reads.
hub::HubEnvironment hub_environment();

// Shows on standard error how a download goes, and ends it on an interrupt, which it catches while it lives.
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
  std::optional<std::uint64_t> before_;  // bytes that were there already
  double started_ = 0;
};

// Makes -m of the command that was parsed a path: fetches a model of the hub, and takes the default where none is
// given. Does nothing for commands without a model. Errors: those of hub::resolve_model and hub::default_model.
Status resolve_model_option(CLI::App& program);

// Returns the name by which clients of a server know a model that was given as `typed` and is the file `path`: without
// folder and ending, and of a split file without the number of its part.
std::string model_title(const std::string& typed, const std::string& path);

}  // namespace kvasir::cli

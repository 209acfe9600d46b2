// Resolves a user's name of a model to the file to open, and lists the models present.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/environment.h"
#include "hub/pull.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Returns the path of the file to open. Fetches a model of the hub that is not in the cache. Returns a path that does
// not exist unchanged, unless its meaning can be guessed: that is an error. Errors: kInvalidArgument and kNotFound,
// with what to type instead; those of pull.
Result<std::string> resolve_model(const std::string& name, const HubEnvironment& environment,
                                  const PullOptions& options);

struct DefaultModel {
  std::string title;  // such as "SmolLM2-135M-Instruct (Q4_1)"
  std::string path;
};
// Returns the model used if none is named: SmolLM2-135M-Instruct in Kvasir's folder, else the bundled one. Errors:
// kNotFound, with how to get one.
Result<DefaultModel> default_model(const HubEnvironment& environment);

// A model that can be used without a download.
struct LocalModel {
  std::string name;         // for option -m
  std::string path;         // of the file to open
  std::string quant;        // "" if the name does not tell
  std::string where;        // "kvasir", "bundled", "hub", "ollama" or "lmstudio"
  std::uint64_t bytes = 0;  // of all parts
  bool whole = true;        // false: the rest of an interrupted pull of a repository; `path` is empty
};
// Returns the models in the order of `where` above, then by name. Skips folders that cannot be read.
std::vector<LocalModel> local_models(const HubEnvironment& environment);

struct RemovedModel {
  std::uint64_t freed = 0;   // bytes
  std::uint64_t shared = 0;  // bytes that stay, because another snapshot refers to them
};
// Removes a model of the hub's cache, or a file in Kvasir's own folder given by its path. Errors: kNotFound;
// kInvalidArgument for models of other programs, and for other files.
Result<RemovedModel> remove_model(const std::string& name, const HubEnvironment& environment);
// Removes what interrupted pulls of a hub repository left. Errors: kNotFound; kInvalidArgument for a name that is not a
// hub model's.
Result<RemovedModel> remove_partial(const std::string& name, const HubEnvironment& environment);

}  // namespace kvasir::hub

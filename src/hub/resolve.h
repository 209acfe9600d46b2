// From what a user names to the file to open, and what models there are.
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

// Returns the path of the file to open. A path that does not exist is returned as it is, unless it is seen what was
// meant. A model of the hub that is not in the cache is fetched. Errors: kInvalidArgument and kNotFound, with what to
// type instead; those of pull.
Result<std::string> resolve_model(const std::string& name, const HubEnvironment& environment,
                                  const PullOptions& options);

struct DefaultModel {
  std::string title;  // such as "SmolLM2-135M-Instruct (Q4_1)"
  std::string path;
};
// The model that is used where none is named: SmolLM2-135M-Instruct in Kvasir's folder, else the bundled one. Errors:
// kNotFound, with how to get one.
Result<DefaultModel> default_model(const HubEnvironment& environment);

// A model that can be used without fetching anything.
struct LocalModel {
  std::string name;         // what to give -m
  std::string path;         // of the file to open
  std::string quant;        // "" where the name does not say
  std::string where;        // "kvasir", "bundled", "hub", "ollama" or "lmstudio"
  std::uint64_t bytes = 0;  // of all parts
  bool whole = true;        // false: what an interrupted pull of a repository has left; `path` is empty
};
// In the order of `where` above, then by name. Folders that cannot be read are left out.
std::vector<LocalModel> local_models(const HubEnvironment& environment);

struct RemovedModel {
  std::uint64_t freed = 0;   // bytes
  std::uint64_t shared = 0;  // bytes that stay, because another snapshot refers to them
};
// Removes a model of the hub's cache, or a file in Kvasir's own folder given by its path. Errors: kNotFound;
// kInvalidArgument for models of other programs, and for other files.
Result<RemovedModel> remove_model(const std::string& name, const HubEnvironment& environment);
// Removes what interrupted pulls of a repository of the hub have left. Errors: kNotFound; kInvalidArgument for a name
// that is none of the hub.
Result<RemovedModel> remove_partial(const std::string& name, const HubEnvironment& environment);

}  // namespace kvasir::hub

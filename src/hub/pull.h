// Fetches a model of the hub into the cache.
// Thread-safety: none; processes may fetch the same model at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/environment.h"
#include "hub/model_name.h"
#include "hub/transfer.h"
#include "kvasir/status.h"

namespace kvasir::hub {

struct PullOptions {
  TransferOptions transfer;  // its token and origin are set by pull
  // Called some ten times a second with the bytes present and those of all files; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

struct PulledModel {
  std::string path;                // of the file to open
  std::vector<std::string> files;  // paths of all parts, the one to open first
  std::string commit;
  std::uint64_t bytes = 0;    // of all files
  std::uint64_t fetched = 0;  // part fetched in this call
};

// What the cache has of a hub model.
struct CachedModel {
  std::string commit;
  std::vector<std::string> files;  // paths in the snapshot, the one to open first
  bool sure = true;                // whether the hub would choose the same
};
// Returns nullopt if nothing in the cache fits.
std::optional<CachedModel> find_cached(const HubCache& cache, const ModelName& name);

// Asks the hub for the revision's files, chooses, and fetches those not in the cache, four at a time. Checks each
// content's hash before it gives the file its name. A failure leaves a partial file, which the next call continues. A
// content of the wrong size is fetched again. Offline, uses what the cache has. REQUIRES: name.place is kHub. Errors:
// those of choose_files, run_transfers and hub_cache; kInvalidArgument for what is not in the cache when offline;
// kResourceExhausted for a full disk.
Result<PulledModel> pull(const ModelName& name, const HubEnvironment& environment, const PullOptions& options);

}  // namespace kvasir::hub

// The LoRA adapters of a model: their files, and which of them a text runs with.
// Thread-safety: plain values; opening reads files only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "gguf/reader.h"
#include "kvasir/engine.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "model/adapter.h"

namespace kvasir {

// Raised with every change of the bits of what adapters add.
inline constexpr int kAdapterVersion = 1;

// What is known of a loaded adapter. Its number is its place in the list.
struct Adapter {
  std::string name;           // general.name, or the file's name without its folder and extension
  std::string path;           // as given
  std::string task;           // AdapterMap::task
  std::string prompt_prefix;  // AdapterMap::prompt_prefix
  float scale = 1;            // of texts that do not choose; 0: they run without it
  int rank = 0;               // the largest
  std::uint64_t bytes = 0;    // allocated
  Hash128 fingerprint;        // XXH3-128 of the file's header and all its tensors
};

std::vector<AdapterSummary> summaries_of(std::span<const Adapter> adapters);

// The files of adapters, opened and checked but not loaded.
struct AdapterFiles {
  std::vector<gguf::File> files;
  std::vector<AdapterMap> maps;   // valid while the files are open
  std::vector<Adapter> adapters;  // bytes: on the CPU backend

  int ranks() const;            // BackendShape::adapter_ranks
  std::uint64_t bytes() const;  // of all adapters
};

enum class AdapterReading {
  kHeaders,  // files may end behind their header
  kSizes,    // files must be whole, but their data is not read: there are no fingerprints
  kData,
};

// `model`: as map_adapter. Errors: those of the file, and of map_adapter, with the file's name; kInvalidArgument for a
// scale that is not finite, and for more than kMostAdapters; of kData kDataLoss for numbers that are not finite.
Result<AdapterFiles> open_adapters(std::span<const AdapterFile> files, const ModelConfig& config,
                                   const WeightMap& model, AdapterReading reading = AdapterReading::kData);

// Returns what a text runs with that asks for `asked`; nullopt: for nothing. In the order of the adapters; those of
// scale 0 are left out. Errors: kInvalidArgument for an adapter that there is not, one asked for twice, and a scale
// that is not finite.
Result<std::vector<AppliedAdapter>> apply_adapters(std::span<const Adapter> adapters,
                                                   const std::optional<std::vector<AdapterScale>>& asked);

// As above, for a text that asks for nothing.
std::vector<AppliedAdapter> default_adapters(std::span<const Adapter> adapters);

// Names what `applied` changes about a text's keys and values, for any engine: versions, fingerprints and scales, in
// order. Empty for none.
std::string adapter_key(std::span<const Adapter> adapters, std::span<const AppliedAdapter> applied);

}  // namespace kvasir

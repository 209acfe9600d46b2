// Finds the models that ollama has fetched, and reads them in place.
// Thread-safety: pure functions of what is on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/model_name.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// The file of weights that a manifest names. Errors: kDataLoss; kUnsupported for weights that are not GGUF.
struct OllamaWeights {
  std::string digest;  // 64 hex digits
  std::uint64_t bytes = 0;
  bool is_manifest = false;  // the digest is that of another manifest, which names the weights
};
Result<OllamaWeights> parse_ollama_manifest(std::string_view json);

// Returns the path of a model's weights in one of ollama's folders. REQUIRES: name.place is kOllama. Errors: kNotFound,
// with the models that exist; those of parse_ollama_manifest.
Result<std::string> find_ollama_model(const ModelName& name, const std::vector<std::string>& folders);

struct OllamaModel {
  ModelName name;
  std::string path;
  std::uint64_t bytes = 0;
};
// Returns all models whose weights are present.
std::vector<OllamaModel> ollama_models(const std::vector<std::string>& folders);

}  // namespace kvasir::hub

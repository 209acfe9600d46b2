#include "hub/ollama.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;
using Manifest = nlohmann::json;

constexpr std::size_t kMostManifest = 4 << 20;

std::string string_in(const Manifest& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string digest_in(const Manifest& object) {
  const std::string digest = string_in(object, "digest");
  return digest.starts_with("sha256:") && is_hex(std::string_view(digest).substr(7), 64) ? digest.substr(7) : "";
}

std::string blob_in(const std::string& folder, const std::string& digest) {
  std::error_code error;
  const std::string path = folder + "/blobs/sha256-" + digest;
  const std::string old = folder + "/blobs/sha256:" + digest;
  return !fs::exists(path, error) && fs::exists(old, error) ? old : path;
}

std::string manifest_in(const std::string& folder, const ModelName& name) {
  return folder + "/manifests/" + name.repo + "/" + name.quant;
}

Result<OllamaWeights> weights_of(const std::string& folder, const ModelName& name) {
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_file(manifest_in(folder, name), kMostManifest));
  KVASIR_ASSIGN_OR_RETURN(OllamaWeights weights, parse_ollama_manifest(text));
  if (!weights.is_manifest) return weights;
  KVASIR_ASSIGN_OR_RETURN(text, read_file(blob_in(folder, weights.digest), kMostManifest));
  KVASIR_ASSIGN_OR_RETURN(weights, parse_ollama_manifest(text));
  if (weights.is_manifest) return data_loss("a manifest of {} refers to others in turn", to_string(name));
  return weights;
}

}  // namespace

Result<OllamaWeights> parse_ollama_manifest(std::string_view text) {
  const auto shallow = [](int depth, Manifest::parse_event_t, Manifest&) { return depth <= 12; };
  const Manifest json = Manifest::parse(text, shallow, false);
  if (!json.is_object()) return data_loss("ollama's manifest is malformed; pull the model again with ollama");
  OllamaWeights weights;
  // A list has one manifest per program that could run the model.
  if (const auto list = json.find("manifests"); list != json.end() && list->is_array()) {
    for (const Manifest& child : *list)
      if (string_in(child, "format") == "gguf" && !digest_in(child).empty())
        return OllamaWeights{digest_in(child), 0, true};
    return unsupported("ollama has this model in another format than GGUF");
  }
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array())
    return data_loss("ollama's manifest is malformed; pull the model again with ollama");
  for (const Manifest& layer : *layers) {
    if (string_in(layer, "mediaType") != "application/vnd.ollama.image.model") continue;
    weights.digest = digest_in(layer);
    if (weights.digest.empty()) return data_loss("ollama's manifest is malformed; pull the model again with ollama");
    const auto size = layer.find("size");
    if (size != layer.end() && size->is_number_unsigned()) weights.bytes = size->get<std::uint64_t>();
    return weights;
  }
  return unsupported("ollama has this model in another format than GGUF, or in the cloud");
}

Result<std::string> find_ollama_model(const ModelName& name, const std::vector<std::string>& folders) {
  std::error_code error;
  for (const std::string& folder : folders) {
    if (!fs::is_regular_file(manifest_in(folder, name), error)) continue;
    KVASIR_ASSIGN_OR_RETURN(const OllamaWeights weights, weights_of(folder, name));
    std::string path = blob_in(folder, weights.digest);
    if (fs::is_regular_file(path, error)) return path;
    return make_status(StatusCode::kNotFound,
                       "ollama lists {}, and its weights '{}' are missing; pull it again with "
                       "ollama",
                       to_string(name), path);
  }
  std::vector<std::string> names;
  for (const OllamaModel& model : ollama_models(folders)) names.push_back(to_string(model.name));
  if (names.size() > 30) names.resize(30);
  return make_status(StatusCode::kNotFound, "ollama has no {} here ({}); {}", to_string(name), fmt::join(folders, ", "),
                     names.empty() ? "it has no models" : fmt::format("there is: {}", fmt::join(names, ", ")));
}

std::vector<OllamaModel> ollama_models(const std::vector<std::string>& folders) {
  std::vector<OllamaModel> models;
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path manifests = folder + "/manifests";
    fs::recursive_directory_iterator entry(manifests, fs::directory_options::skip_permission_denied, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      const std::string path = entry->path().lexically_relative(manifests).string();
      const std::size_t slash = path.rfind('/');
      if (std::ranges::count(path, '/') != 3) continue;
      const Result<ModelName> name = parse_model_name("ollama:" + path.substr(0, slash) + ":" + path.substr(slash + 1));
      if (!name.ok()) continue;
      const Result<OllamaWeights> weights = weights_of(folder, *name);
      if (!weights.ok()) continue;
      const std::string blob = blob_in(folder, weights->digest);
      std::error_code missing;
      const std::uintmax_t bytes = fs::file_size(blob, missing);
      if (!missing) models.push_back({*name, blob, bytes});
    }
  }
  std::ranges::sort(models, {}, [](const OllamaModel& model) { return to_string(model.name); });
  return models;
}

}  // namespace kvasir::hub

#include "hub/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/part_name.h"
#include "base/status.h"
#include "hub/cache.h"
#include "hub/choose_file.h"
#include "hub/model_name.h"
#include "hub/ollama.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultFile = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr std::uint64_t kDefaultBytes = 98'362'432;
constexpr const char* kBundledFile = "kvasir-mini-16m-q8_0.gguf";

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::uint64_t bytes_of(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  return error ? 0 : bytes;
}

std::vector<std::string> gguf_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (const std::string name = entry->path().filename().string(); name.ends_with(".gguf") && is_file(entry->path()))
      names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (is_folder(entry->path())) names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

Result<std::string> resolve_hub(const ModelName& name, const HubEnvironment& environment, const PullOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::string root, hub_cache(environment));
  const HubCache cache(root);
  const std::optional<CachedModel> cached = find_cached(cache, name);
  const auto path = [&] { return cache.snapshot(name.repo, cached->commit) + "/" + cached->files.front(); };
  if (cached && (cached->sure || environment.offline)) return path();
  PullOptions once = options;
  if (cached) once.transfer.tries = 1;  // the cache is a fallback
  Result<PulledModel> pulled = pull(name, environment, once);
  if (pulled.ok()) return std::move(pulled->path);
  const StatusCode code = pulled.status().code();
  if (!cached || (code != StatusCode::kIo && code != StatusCode::kUnsupported)) return pulled.status();
  if (options.transfer.note)
    options.transfer.note(fmt::format("{}; the cache has {}", pulled.status().message(), cached->files.front()));
  return path();
}

Result<std::string> resolve_lmstudio(const ModelName& name, const HubEnvironment& environment) {
  const std::vector<std::string> folders = lmstudio_folders(environment);
  for (const std::string& folder : folders) {
    const std::string repo = folder + "/" + name.repo;
    if (!is_folder(repo)) continue;
    KVASIR_ASSIGN_OR_RETURN(const std::vector<std::string> files, choose_files(gguf_files(repo), name));
    return repo + "/" + files.front();
  }
  return make_status(StatusCode::kNotFound, "LM Studio has no {} here ({})", name.repo, fmt::join(folders, ", "));
}

Result<std::string> resolve_path(const std::string& path) {
  if (is_folder(path)) return model_in_folder(path);
  std::error_code error;
  const bool safetensors = path.ends_with(".safetensors");
  if (safetensors)
    return invalid_argument(
        "'{}' {} safetensors, and Kvasir reads GGUF; give a GGUF file of the same model, such as -m hf:USER/REPO", path,
        fs::exists(path, error) ? "holds" : "names");
  if (fs::exists(path, error)) return path;
  const std::string meant = name_meant(path);
  if (meant.empty() && (path.starts_with("http://") || path.starts_with("https://")))
    return invalid_argument(
        "'{}' is an address of the web; download the file and give its name, or fetch a model of the Hugging Face hub "
        "with -m hf:USER/REPO",
        path.substr(0, 300));
  const bool is_relative_file = path.ends_with(".gguf") && std::ranges::count(path, '/') < 2;
  if (meant.empty() || is_relative_file) return path;
  return make_status(StatusCode::kNotFound, "there is no file '{}'; for a model of the Hugging Face hub type -m {}",
                     path, meant);
}

// Returns the paths of all present parts of a split model, or the path itself.
std::vector<std::string> all_parts(const std::string& path) {
  const std::optional<PartName> split = parse_part_name(path);
  if (!split) return {path};
  std::vector<std::string> parts;
  for (std::uint64_t number = 1; number <= split->place.count; ++number)
    if (std::string part = part_path(split->stem, {number, split->place.count}); is_file(part))
      parts.push_back(std::move(part));
  return parts;
}

void add_files(const std::string& folder, const std::string& where, std::vector<LocalModel>& models) {
  const std::vector<std::string> names = gguf_files(folder);
  for (const std::string& name : names) {
    const std::optional<PartName> split = parse_part_name(name);
    if (!is_weights_name(name) || (split && split->place.number != 1)) continue;
    LocalModel model{folder + "/" + name, folder + "/" + name, quant_of(name), where, 0};
    for (const std::string& other : names) {
      const std::optional<PartName> part = parse_part_name(other);
      if (other == name || (split && part && part->stem == split->stem && part->place.count == split->place.count))
        model.bytes += bytes_of(folder + "/" + other);
    }
    models.push_back(std::move(model));
  }
}

// Appends the models of one repository, each named by its quantization if that selects it, else by its file.
void add_repo(ModelName name, const std::string& folder, const std::vector<std::string>& paths,
              const std::string& where, std::vector<LocalModel>& models) {
  for (const std::string& path : paths) {
    const std::optional<PartName> split = parse_part_name(path);
    if (!is_weights_name(path) || (split && split->place.number != 1)) continue;
    name.file.clear();
    name.quant = quant_of(path);
    const auto chosen = choose_files(paths, name);
    if (name.quant.empty() || !chosen.ok() || chosen->front() != path) name.file = path;
    const auto parts = choose_files(paths, name);
    if (!parts.ok()) continue;  // a part is missing
    LocalModel model{to_string(name), folder + "/" + path, quant_of(path), where, 0};
    for (const std::string& part : *parts) model.bytes += bytes_of(folder + "/" + part);
    models.push_back(std::move(model));
  }
}

void add_snapshot(const HubCache& cache, const CachedSnapshot& snapshot, std::vector<LocalModel>& models) {
  ModelName name;
  name.place = ModelPlace::kHub;
  name.repo = snapshot.repo;
  name.revision = snapshot.revision;
  add_repo(name, cache.snapshot(snapshot.repo, snapshot.commit), snapshot.paths, "hub", models);
}

void add_hub_models(const HubEnvironment& environment, std::vector<LocalModel>& models) {
  const Result<std::string> root = hub_cache(environment);
  if (!root.ok()) return;
  const HubCache cache(*root);
  for (const CachedSnapshot& snapshot : cache.snapshots()) add_snapshot(cache, snapshot, models);
  for (const LooseContents& loose : cache.loose())
    models.push_back({"hf:" + loose.repo, "", "", "hub", loose.bytes, false});
}

bool has_loose(const HubCache& cache, const std::string& repo) {
  const std::vector<LooseContents> loose = cache.loose();
  return std::ranges::find(loose, repo, &LooseContents::repo) != loose.end();
}

}  // namespace

Result<std::string> resolve_model(const std::string& text, const HubEnvironment& environment,
                                  const PullOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const ModelName name, parse_model_name(text));
  switch (name.place) {
    case ModelPlace::kHub: return resolve_hub(name, environment, options);
    case ModelPlace::kOllama: return find_ollama_model(name, ollama_folders(environment));
    case ModelPlace::kLmStudio: return resolve_lmstudio(name, environment);
    case ModelPlace::kPath: break;
  }
  return resolve_path(text);
}

Result<DefaultModel> default_model(const HubEnvironment& environment) {
  if (const std::string own = own_models(environment); !own.empty()) {
    const std::string path = own + "/" + kDefaultFile;
    if (is_file(path) && bytes_of(path) == kDefaultBytes) return DefaultModel{"SmolLM2-135M-Instruct (Q4_1)", path};
  }
  if (const std::string bundled = bundled_models(environment); !bundled.empty())
    if (const std::string path = bundled + "/" + kBundledFile; is_file(path))
      return DefaultModel{"kvasir-mini-16m (Q8_0), bundled", path};
  return make_status(StatusCode::kNotFound,
                     "no model is given and none is here; give a GGUF file with -m, or fetch one: -m hf:USER/REPO");
}

std::vector<LocalModel> local_models(const HubEnvironment& environment) {
  std::vector<LocalModel> models;
  if (const std::string own = own_models(environment); !own.empty()) add_files(own, "kvasir", models);
  if (const std::string bundled = bundled_models(environment); !bundled.empty()) add_files(bundled, "bundled", models);
  add_hub_models(environment, models);
  for (const OllamaModel& model : ollama_models(ollama_folders(environment)))
    models.push_back({to_string(model.name), model.path, "", "ollama", model.bytes});
  for (const std::string& folder : lmstudio_folders(environment))
    for (const std::string& publisher : folders_in(folder))
      for (const std::string& repo : folders_in(folder + "/" + publisher)) {
        ModelName name;
        name.place = ModelPlace::kLmStudio;
        name.repo = publisher + "/" + repo;
        const std::string path = folder + "/" + name.repo;
        if (is_repo_id(name.repo)) add_repo(name, path, gguf_files(path), "lmstudio", models);
      }
  return models;
}

namespace {

// Removes a file of Kvasir's own folder, given by its path or its name there.
Result<RemovedModel> remove_file(const std::string& text, const HubEnvironment& environment) {
  const std::string own = own_models(environment);
  std::error_code error;
  const bool is_name = text.find('/') == std::string::npos && !own.empty() && is_file(own + "/" + text);
  const fs::path path = is_name ? own + "/" + text : text;
  const bool is_own = !own.empty() && path.extension() == ".gguf" &&
                      fs::equivalent(path.has_parent_path() ? path.parent_path() : fs::path("."), own, error);
  if (!is_own) {
    const std::string meant = name_meant(text);
    return invalid_argument(
        "'{}' is not in Kvasir's folder '{}'; {}", text, own,
        meant.empty() ? "a model of the hub is named hf:USER/REPO:QUANT" : "for one of the hub type " + meant);
  }
  if (!is_file(path)) return make_status(StatusCode::kNotFound, "there is no file '{}'", path.string());
  RemovedModel removed;
  for (const std::string& part : all_parts(path)) {
    const std::uint64_t bytes = bytes_of(part);
    if (!fs::remove(part, error) && error)
      return make_status(StatusCode::kIo, "cannot remove '{}': {}", part, error.message());
    removed.freed += bytes;
  }
  return removed;
}

// Returns the error that the cache lacks a model, with what it has of the repository.
Status not_cached(const std::string& text, const ModelName& name, const HubCache& cache) {
  std::vector<LocalModel> models;
  for (const CachedSnapshot& snapshot : cache.snapshots())
    if (snapshot.repo == name.repo) add_snapshot(cache, snapshot, models);
  std::string there;
  for (const LocalModel& model : models) there += (there.empty() ? "; there is: " : ", ") + model.name;
  if (has_loose(cache, name.repo)) there += "; --partial removes what is fetched in part";
  return make_status(StatusCode::kNotFound, "{} is not in the cache '{}'{}", text, cache.root(), there);
}

}  // namespace

Result<RemovedModel> remove_model(const std::string& text, const HubEnvironment& environment) {
  KVASIR_ASSIGN_OR_RETURN(const ModelName name, parse_model_name(text));
  if (name.place == ModelPlace::kOllama)
    return invalid_argument("{} belongs to ollama; remove it with 'ollama rm'", text);
  if (name.place == ModelPlace::kLmStudio) return invalid_argument("{} belongs to LM Studio; remove it there", text);
  if (name.place == ModelPlace::kPath) return remove_file(text, environment);
  RemovedModel removed;
  KVASIR_ASSIGN_OR_RETURN(const std::string root, hub_cache(environment));
  const HubCache cache(root);
  const std::optional<std::string> commit = cache.commit_of(name.repo, name.revision);
  std::vector<std::string> paths;
  if (commit) paths = cache.files_of(name.repo, *commit);
  const bool whole_repo = name.file.empty() && name.quant.empty();
  if (paths.empty() && whole_repo && has_loose(cache, name.repo)) return remove_partial(text, environment);
  const Result<std::vector<std::string>> found = choose_files(paths, name);
  if (paths.empty() || !found.ok()) return not_cached(text, name, cache);
  const std::vector<std::string>& chosen = *found;
  // Without a quantization or file, which of several files is meant would be a guess.
  if (name.file.empty() && name.quant.empty() && chosen.size() < paths.size())
    return invalid_argument(
        "the cache has several files of {}; add :QUANT or /FILE.gguf, as 'kvasir models' lists them", name.repo);
  std::uint64_t bytes = 0;
  for (const std::string& path : chosen) bytes += bytes_of(cache.snapshot(name.repo, *commit) + "/" + path);
  KVASIR_ASSIGN_OR_RETURN(removed.freed, cache.remove(name.repo, *commit, chosen));
  removed.shared = bytes - std::min(bytes, removed.freed);
  return removed;
}

Result<RemovedModel> remove_partial(const std::string& text, const HubEnvironment& environment) {
  KVASIR_ASSIGN_OR_RETURN(const ModelName name, parse_model_name(text));
  if (name.place != ModelPlace::kHub)
    return invalid_argument("'{}' is no model of the hub (hf:USER/REPO); only those are fetched in part", text);
  KVASIR_ASSIGN_OR_RETURN(const std::string root, hub_cache(environment));
  const HubCache cache(root);
  if (!has_loose(cache, name.repo))
    return make_status(StatusCode::kNotFound, "the cache '{}' has nothing of hf:{} that is fetched in part", root,
                       name.repo);
  RemovedModel removed;
  KVASIR_ASSIGN_OR_RETURN(removed.freed, cache.remove_loose(name.repo));
  if (has_loose(cache, name.repo))
    return invalid_argument("hf:{} is being fetched by another process; {} bytes that it does not need are removed",
                            name.repo, removed.freed);
  return removed;
}

}  // namespace kvasir::hub

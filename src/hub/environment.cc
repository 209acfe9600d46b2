#include "hub/environment.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

std::string expand_home(const std::string& path, const HubEnvironment& environment) {
  if (path == "~" || path.starts_with("~/")) return environment.home + path.substr(1);
  return path;
}

// Returns the folder for files that can be fetched again; "" if unknown.
std::string cache_home(const HubEnvironment& environment) {
  if (!environment.xdg_cache_home.empty()) return expand_home(environment.xdg_cache_home, environment);
  return environment.home.empty() ? "" : environment.home + "/.cache";
}

std::string hf_home(const HubEnvironment& environment) {
  if (!environment.hf_home.empty()) return expand_home(environment.hf_home, environment);
  const std::string cache = cache_home(environment);
  return cache.empty() ? "" : cache + "/huggingface";
}

}  // namespace

Result<std::string> hub_cache(const HubEnvironment& environment) {
  for (const std::string& folder : {environment.hf_hub_cache, environment.huggingface_hub_cache})
    if (!folder.empty()) return expand_home(folder, environment);
  const std::string home = hf_home(environment);
  if (home.empty()) return invalid_argument("there is no folder for models of the hub: set HOME or HF_HUB_CACHE");
  return home + "/hub";
}

std::string own_models(const HubEnvironment& environment) {
  if (!environment.kvasir_cache.empty()) return expand_home(environment.kvasir_cache, environment) + "/models";
  const std::string cache = cache_home(environment);
  return cache.empty() ? "" : cache + "/kvasir/models";
}

std::vector<std::string> ollama_folders(const HubEnvironment& environment) {
  if (!environment.ollama_models.empty()) return {expand_home(environment.ollama_models, environment)};
  std::vector<std::string> folders;
  if (!environment.home.empty()) folders.push_back(environment.home + "/.ollama/models");
  folders.emplace_back("/usr/share/ollama/.ollama/models");
  folders.emplace_back("/var/lib/ollama/models");
  return folders;
}

std::vector<std::string> lmstudio_folders(const HubEnvironment& environment) {
  if (environment.home.empty()) return {};
  return {environment.home + "/.lmstudio/models", environment.home + "/.cache/lm-studio/models"};
}

std::string bundled_models(const HubEnvironment& environment) {
  const std::filesystem::path program = std::filesystem::path(environment.executable).parent_path();
  if (program.empty()) return "";
  for (const char* beside : {"../share/kvasir/models", "../../../models"}) {
    std::filesystem::path folder = (program / beside).lexically_normal();
    std::error_code error;
    if (std::filesystem::is_directory(folder, error)) return folder.string();
  }
  return "";
}

Result<std::string> hub_endpoint(const HubEnvironment& environment) {
  std::string endpoint = environment.hf_endpoint.empty() ? "https://huggingface.co" : environment.hf_endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool known = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  const bool plain = std::ranges::all_of(endpoint, [](char c) { return c > ' ' && c < 0x7f && c != '\\'; });
  if (!known || !plain || endpoint.ends_with(':') || endpoint.find_first_of("?#@") != std::string::npos)
    return invalid_argument("HF_ENDPOINT is no address such as https://huggingface.co");
  return endpoint;
}

Result<std::string> hub_token(const HubEnvironment& environment) {
  std::string token = environment.hf_token;
  if (token.empty()) {
    const std::string home = hf_home(environment);
    const std::string path = !environment.hf_token_path.empty() ? expand_home(environment.hf_token_path, environment)
                             : home.empty()                     ? ""
                                                                : home + "/token";
    std::error_code error;
    if (path.empty() || !std::filesystem::is_regular_file(path, error)) return std::string();
    KVASIR_ASSIGN_OR_RETURN(token, read_file(path, 4096));
  }
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!token.empty() && is_space(token.back())) token.pop_back();
  while (!token.empty() && is_space(token.front())) token.erase(0, 1);
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; }))
    return invalid_argument("the token of HF_TOKEN, or of its file, has characters that no token has");
  return token;
}

}  // namespace kvasir::hub

// Folders of models and the address of the hub, as the variables of the Hugging Face tools and of Kvasir set them.
// Thread-safety: pure functions but for hub_token, which may read a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::hub {

// Values of the environment, each under its variable's name in lower case; empty: not set.
struct HubEnvironment {
  std::string home;
  std::string xdg_cache_home;
  std::string hf_home;
  std::string hf_hub_cache;
  std::string huggingface_hub_cache;
  std::string hf_token;
  std::string hf_token_path;
  std::string hf_endpoint;
  std::string kvasir_cache;
  std::string ollama_models;
  std::string executable;  // path of the running program, next to which a bundled model may be
  bool offline = false;    // HF_HUB_OFFLINE or --offline: nothing is fetched
};

// Returns the cache of the Hugging Face tools: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. Errors: kInvalidArgument if none of them is set.
Result<std::string> hub_cache(const HubEnvironment& environment);

// Returns Kvasir's folder: KVASIR_CACHE/models, XDG_CACHE_HOME/kvasir/models, ~/.cache/kvasir/models; "" if none is
// set.
std::string own_models(const HubEnvironment& environment);

// Returns ollama's possible folders: only OLLAMA_MODELS if set, else the user's and those of the system's service.
std::vector<std::string> ollama_folders(const HubEnvironment& environment);

// Returns LM Studio's possible folders.
std::vector<std::string> lmstudio_folders(const HubEnvironment& environment);

// Returns the folder of the bundled model, as installed or in the source tree; "" if there is none.
std::string bundled_models(const HubEnvironment& environment);

// Returns the hub's address without a slash at its end: HF_ENDPOINT or https://huggingface.co. Errors:
// kInvalidArgument.
Result<std::string> hub_endpoint(const HubEnvironment& environment);

// Returns HF_TOKEN, else the content of HF_TOKEN_PATH or HF_HOME/token; "" if there is none. Errors: kInvalidArgument
// for characters that no token has.
Result<std::string> hub_token(const HubEnvironment& environment);

}  // namespace kvasir::hub

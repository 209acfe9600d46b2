// The ways to name a model, and the checks of names that come from users and servers.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::hub {

enum class ModelPlace { kPath, kHub, kOllama, kLmStudio };

struct ModelName {
  ModelPlace place = ModelPlace::kPath;
  std::string path;               // of kPath: as given
  std::string repo;               // USER/REPO; of kOllama: HOST/NAMESPACE/NAME
  std::string file;               // path of a GGUF file in the repository; "": chosen by `quant`
  std::string quant;              // such as Q4_K_M; "": the usual choice. Of kOllama: the tag
  std::string revision = "main";  // of kHub: branch, tag or commit
};

// Reads
//   hf:USER/REPO[:QUANT][@REVISION]   hf:USER/REPO/FILE.gguf[@REVISION]
//   ollama:[HOST/][NAMESPACE/]NAME[:TAG]
//   lmstudio:PUBLISHER/REPO[:QUANT]   lmstudio:PUBLISHER/REPO/FILE.gguf
// Any other text is a path, which is not checked. Errors: kInvalidArgument.
Result<ModelName> parse_model_name(std::string_view text);

// Returns the name as parse_model_name reads it.
std::string to_string(const ModelName& name);

// Returns what to type instead of something that is no file, such as "USER/REPO"; "" if unknown.
std::string name_meant(std::string_view text);

// Returns whether a text is USER/REPO: at most 256 bytes of letters, digits, '.', '_' and '-'; no part begins with '.'
// or '-', none has "..".
bool is_repo_id(std::string_view text);
// Returns whether git allows a branch of this name: letters, digits, '.', '_', '-' and '/'; at most 255 bytes.
bool is_revision(std::string_view text);
// Returns whether a relative path stays in its folder: no empty part, "." or "..", no backslash, no control characters;
// parts of at most 255 bytes, 1,024 in all.
bool is_safe_path(std::string_view text);
bool is_hex(std::string_view text, std::size_t digits);  // in lower case

}  // namespace kvasir::hub

#include "hub/model_name.h"

#include <algorithm>
#include <vector>

#include "base/status.h"

namespace kvasir::hub {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// One part of a name of a repository.
bool is_part(std::string_view text) {
  return !text.empty() && text.front() != '.' && text.front() != '-' && std::ranges::all_of(text, is_word) &&
         text.find("..") == std::string_view::npos;
}

bool is_tag(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, is_word) && text.front() != '.';
}

std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(mark, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_gguf(std::string_view text) {
  return text.size() > 5 && text.ends_with(".gguf");
}

constexpr std::string_view kHubForm = "hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO/FILE.gguf";
constexpr std::string_view kLmStudioForm =
    "lmstudio:PUBLISHER/REPO, lmstudio:PUBLISHER/REPO:QUANT or lmstudio:PUBLISHER/REPO/FILE.gguf";

// Reads USER/REPO[:QUANT] or USER/REPO/FILE.gguf.
Status read_repo(std::string_view text, std::string_view typed, std::string_view form, ModelName& name) {
  const std::size_t user = text.find('/');
  const std::size_t file = user == std::string_view::npos ? user : text.find('/', user + 1);
  const std::size_t quant = text.find(':');
  if (file != std::string_view::npos && file < quant) {
    name.repo = text.substr(0, file);
    name.file = text.substr(file + 1);
    if (!is_safe_path(name.file) || !is_gguf(name.file))
      return invalid_argument("'{}' names no GGUF file; give {}", typed.substr(0, 300), form);
  } else {
    name.repo = text.substr(0, quant);
    if (quant != std::string_view::npos) name.quant = text.substr(quant + 1);
    if (quant != std::string_view::npos && !is_tag(name.quant))
      return invalid_argument("'{}' has no quantization behind its ':'; give {}", typed.substr(0, 300), form);
  }
  if (!is_repo_id(name.repo))
    return invalid_argument("'{}' does not name a repository; give {}", typed.substr(0, 300), form);
  return {};
}

Result<ModelName> read_hub(std::string_view text, std::string_view typed) {
  ModelName name;
  name.place = ModelPlace::kHub;
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision))
      return invalid_argument("'{}' has no branch, tag or commit behind its '@'", typed.substr(0, 300));
    text = text.substr(0, at);
  }
  KVASIR_RETURN_IF_ERROR(read_repo(text, typed, kHubForm, name));
  return name;
}

Result<ModelName> read_ollama(std::string_view text, std::string_view typed) {
  ModelName name;
  name.place = ModelPlace::kOllama;
  const std::size_t slash = text.rfind('/');
  const std::size_t colon = text.find(':', slash == std::string_view::npos ? 0 : slash);
  name.quant = colon == std::string_view::npos ? "latest" : text.substr(colon + 1);
  std::vector<std::string_view> parts = split(text.substr(0, colon), '/');
  const bool fits = parts.size() <= 3 && is_tag(name.quant) && std::ranges::all_of(parts, is_part);
  if (!fits || text.size() > 256)
    return invalid_argument("'{}' does not name a model of ollama; give ollama:NAME or ollama:NAME:TAG",
                            typed.substr(0, 300));
  if (parts.size() == 1) parts.insert(parts.begin(), "library");
  if (parts.size() == 2) parts.insert(parts.begin(), "registry.ollama.ai");
  name.repo = std::string(parts[0]) + "/" + std::string(parts[1]) + "/" + std::string(parts[2]);
  return name;
}

}  // namespace

bool is_repo_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  // Folders of the cache are named USER--REPO: a user with "--" could share a folder with another user's repository.
  return text.size() <= 256 && slash != std::string_view::npos && is_part(text.substr(0, slash)) &&
         is_part(text.substr(slash + 1)) && text.substr(0, slash).find("--") == std::string_view::npos;
}

bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > 255 || text.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(split(text, '/'), [](std::string_view part) {
    return is_part(part) && !part.ends_with('.') && !part.ends_with(".lock");
  });
}

bool is_safe_path(std::string_view text) {
  if (text.empty() || text.size() > 1024) return false;
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; };
  if (std::ranges::any_of(text, is_control)) return false;
  return std::ranges::all_of(split(text, '/'), [](std::string_view part) {
    return !part.empty() && part.size() <= 255 && part != "." && part != "..";
  });
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<ModelName> parse_model_name(std::string_view text) {
  if (text.starts_with("hf:")) return read_hub(text.substr(3), text);
  if (text.starts_with("ollama:")) return read_ollama(text.substr(7), text);
  if (text.starts_with("lmstudio:")) {
    ModelName name;
    name.place = ModelPlace::kLmStudio;
    KVASIR_RETURN_IF_ERROR(read_repo(text.substr(9), text, kLmStudioForm, name));
    return name;
  }
  ModelName name;
  name.path = text;
  return name;
}

std::string to_string(const ModelName& name) {
  switch (name.place) {
    case ModelPlace::kPath: return name.path;
    case ModelPlace::kOllama: {
      std::string_view repo = name.repo;
      for (const std::string_view usual : {"registry.ollama.ai/", "library/"})
        if (repo.starts_with(usual)) repo.remove_prefix(usual.size());
      return "ollama:" + std::string(repo) + ":" + name.quant;
    }
    case ModelPlace::kHub:
    case ModelPlace::kLmStudio: break;
  }
  std::string text = (name.place == ModelPlace::kHub ? "hf:" : "lmstudio:") + name.repo;
  if (!name.file.empty()) text += "/" + name.file;
  if (name.file.empty() && !name.quant.empty()) text += ":" + name.quant;
  if (name.place == ModelPlace::kHub && name.revision != "main") text += "@" + name.revision;
  return text;
}

std::string name_meant(std::string_view text) {
  const auto parsed = [](std::string name) { return parse_model_name(name).ok() ? name : std::string(); };
  for (const std::string_view prefix :
       {"https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/"})
    if (text.starts_with(prefix)) {
      text.remove_prefix(prefix.size());
      for (const std::string_view page : {"/resolve/", "/blob/", "/tree/"})
        if (const std::size_t found = text.find(page); found != std::string_view::npos) {
          std::string_view rest = text.substr(found + page.size());
          rest = rest.substr(0, rest.find_first_of("?#"));
          const std::size_t slash = std::min(rest.find('/'), rest.size());
          const std::string_view revision = rest.substr(0, slash);
          return parsed("hf:" + std::string(text.substr(0, found)) + std::string(rest.substr(slash)) +
                        (revision == "main" ? "" : "@" + std::string(revision)));
        }
      while (text.ends_with('/')) text.remove_suffix(1);
      break;
    }
  return parsed("hf:" + std::string(text));
}

}  // namespace kvasir::hub

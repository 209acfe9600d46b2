#include "hub/choose_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/part_name.h"
#include "base/status.h"

namespace kvasir::hub {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// Returns whether a word in upper case is the name of a quantization: Q4_K_M, IQ3_XXS, TQ1_0, F16, BF16, MXFP4...
bool is_quant(std::string_view word) {
  for (const std::string_view floats : {"F16", "F32", "BF16", "FP16", "FP32", "MXFP4", "NVFP4"})
    if (word == floats || (word.starts_with(floats) && word[floats.size()] == '_')) return true;
  for (const std::string_view prefix : {"IQ", "TQ", "Q"})
    if (word.starts_with(prefix))
      return word.size() > prefix.size() && is_digit(word[prefix.size()]) &&
             (word.size() == prefix.size() + 1 || word[prefix.size() + 1] == '_');
  return false;
}

// Returns whether `tag` occurs in the path between separators: '-', '.' or '/'. Both are in upper case.
bool has_tag(std::string_view path, std::string_view tag) {
  const auto separates = [&](std::size_t at) {
    return std::string_view("-./").find(path[at]) != std::string_view::npos;
  };
  for (std::size_t at = path.find(tag); at != std::string_view::npos; at = path.find(tag, at + 1)) {
    const std::size_t end = at + tag.size();
    if ((at == 0 || separates(at - 1)) && end < path.size() && separates(end)) return true;
  }
  return false;
}

// Returns the paths by which models are opened: whole files and first parts.
std::vector<std::string> openable(std::span<const std::string> paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    const std::optional<PartName> split = parse_part_name(path);
    if (is_weights_name(path) && (!split || split->place.number == 1)) found.push_back(path);
  }
  return found;
}

// Returns the first path whose quantization is exactly `quant`, else the first that contains it as a tag.
const std::string* with_quant(const std::vector<std::string>& paths, std::string_view quant) {
  const std::string tag = upper(quant);
  for (const std::string& path : paths)
    if (quant_of(path) == tag) return &path;
  for (const std::string& path : paths)
    if (quant_of(path) == "UD-" + tag || has_tag(upper(path), tag)) return &path;
  return nullptr;
}

// Lists what may follow the ':'; the files if `files`, or if quantizations do not tell them apart.
std::string what_there_is(const std::vector<std::string>& paths, bool files) {
  std::vector<std::string> quants;
  for (const std::string& path : paths) quants.push_back(quant_of(path));
  const bool distinct =
      std::set(quants.begin(), quants.end()).size() == paths.size() && std::ranges::find(quants, "") == quants.end();
  std::vector<std::string> shown = distinct && !files ? quants : paths;
  const std::size_t count = shown.size();
  if (count > 30) shown.resize(30);
  return fmt::format("{}{}", fmt::join(shown, ", "), count > 30 ? fmt::format(" and {} more", count - 30) : "");
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return out;
}

std::string quant_of(std::string_view path) {
  std::string name = upper(base_name(path));
  if (name.ends_with(".GGUF")) name.resize(name.size() - 5);
  if (const std::optional<PartName> split = parse_part_name(path)) name = upper(base_name(split->stem));
  // Takes the last such word between '-' and '.', or the last part of one behind a '_'.
  for (std::size_t end = name.size(); end > 0;) {
    const std::size_t mark = name.find_last_of("-.", end - 1);
    const std::size_t begin = mark == std::string::npos ? 0 : mark + 1;
    const std::string_view word = std::string_view(name).substr(begin, end - begin);
    if (is_quant(word)) return (begin >= 3 && name.compare(begin - 3, 3, "UD-") == 0 ? "UD-" : "") + std::string(word);
    for (std::size_t at = word.find('_'); at != std::string_view::npos; at = word.find('_', at + 1))
      if (is_quant(word.substr(at + 1))) return std::string(word.substr(at + 1));
    end = mark == std::string::npos ? 0 : mark;
  }
  return "";
}

bool is_weights_name(std::string_view path) {
  const std::string name = upper(base_name(path));
  if (!path.ends_with(".gguf")) return false;
  if (name.find("MMPROJ") != std::string::npos || name.find("IMATRIX") != std::string::npos) return false;
  return std::ranges::none_of(std::array{"MTP-", "EAGLE3-", "DFLASH-", "DSPARK-"},
                              [&](const char* prefix) { return name.starts_with(prefix); });
}

Result<std::vector<std::string>> choose_files(std::span<const std::string> paths, const ModelName& name) {
  const std::vector<std::string> models = openable(paths);
  const std::string* chosen = nullptr;
  if (!name.file.empty()) {
    const auto found = std::ranges::find(paths, name.file);
    if (found != paths.end()) chosen = &*found;
  } else if (!name.quant.empty()) {
    chosen = with_quant(models, name.quant);
  } else if (!models.empty()) {
    chosen = with_quant(models, "Q4_K_M");
    if (chosen == nullptr) chosen = with_quant(models, "Q8_0");
    if (chosen == nullptr) chosen = &models.front();
  }
  if (models.empty() && chosen == nullptr)
    return make_status(StatusCode::kNotFound,
                       "{} has no GGUF file of a model; look for a repository of the same model in GGUF", name.repo);
  if (chosen == nullptr)
    return make_status(StatusCode::kNotFound, "{} has no {}; there is: {}", name.repo,
                       name.file.empty() ? name.quant : "file '" + name.file + "'",
                       what_there_is(models, !name.file.empty()));
  std::vector<std::string> files = {*chosen};
  const std::optional<PartName> split = parse_part_name(*chosen);
  for (std::uint64_t number = 1; split && number <= split->place.count; ++number) {
    const std::string part = part_path(split->stem, {number, split->place.count});
    if (std::ranges::find(paths, part) == paths.end())
      return make_status(StatusCode::kNotFound, "{} has not all parts of the model: '{}' is missing", name.repo, part);
    if (part != *chosen) files.push_back(part);
  }
  return files;
}

Result<std::string> model_in_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  bool has_safetensors = false;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unreadable;
    if (!fs::is_regular_file(entry->path(), unreadable)) continue;
    names.push_back(entry->path().filename().string());
    has_safetensors |= names.back().ends_with(".safetensors");
  }
  if (error) return make_status(StatusCode::kIo, "cannot read the folder '{}': {}", folder, error.message());
  std::ranges::sort(names);
  const std::vector<std::string> models = openable(names);
  if (models.empty() && has_safetensors)
    return invalid_argument(
        "the folder '{}' holds safetensors, and Kvasir reads GGUF; give a GGUF file of the same model, such as "
        "-m hf:USER/REPO",
        folder);
  if (models.empty()) return invalid_argument("the folder '{}' holds no GGUF file of a model", folder);
  if (models.size() > 1)
    return invalid_argument("the folder '{}' holds several models; give one of its files: {}", folder,
                            fmt::join(std::span(models).first(std::min<std::size_t>(models.size(), 30)), ", "));
  return (fs::path(folder) / models.front()).string();
}

}  // namespace kvasir::hub

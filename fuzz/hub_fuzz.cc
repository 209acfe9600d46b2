// Any text as the hub's listing, as a header, as ollama's manifest and as a model's name: what is accepted stays inside
// the folder it is put in, and a name is read as it is written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "hub/choose_file.h"
#include "hub/hub_api.h"
#include "hub/model_name.h"
#include "hub/ollama.h"

namespace {

void check_stays_inside(std::string_view path) {
  const std::filesystem::path whole = (std::filesystem::path("/cache/snapshot") / path).lexically_normal();
  KVASIR_CHECK(whole.string().starts_with("/cache/snapshot/"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir::hub;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<HubFile> files;
  if (parse_tree(text, files).ok()) {
    std::vector<std::string> paths;
    for (const HubFile& file : files) {
      check_stays_inside(file.path);
      KVASIR_CHECK(file.oid.find_first_not_of("0123456789abcdef") == std::string::npos);
      paths.push_back(file.path);
    }
    ModelName name;
    name.repo = "user/repo";
    if (const auto chosen = choose_files(paths, name); chosen.ok())
      for (const std::string& path : *chosen) KVASIR_CHECK(std::ranges::find(paths, path) != paths.end());
  }
  if (const auto commit = parse_commit(text); commit.ok()) check_stays_inside(*commit);
  if (const auto weights = parse_ollama_manifest(text); weights.ok()) check_stays_inside(weights->digest);
  (void)next_page(text);
  (void)plain_etag(text);
  const std::string origin = origin_of(text);
  KVASIR_CHECK(origin.find_first_of("@?#") == std::string::npos);
  if (const auto name = parse_model_name(text); name.ok() && name->place != ModelPlace::kPath) {
    check_stays_inside(name->repo);
    if (!name->file.empty()) check_stays_inside(name->file);
    if (!name->quant.empty()) check_stays_inside(name->quant);
    check_stays_inside(name->revision);
    const auto again = parse_model_name(to_string(*name));
    KVASIR_CHECK(again.ok() && again->repo == name->repo && again->file == name->file && again->quant == name->quant &&
                 again->revision == name->revision);
  }
  return 0;
}

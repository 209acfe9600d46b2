#include "hub/hub_api.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "hub/model_name.h"

namespace kvasir::hub {
namespace {

using HubJson = nlohmann::json;

// Returns null for text that is not JSON, or nested deeper than the API's answers.
HubJson parse_hub_json(std::string_view text) {
  const auto shallow = [](int depth, HubJson::parse_event_t, HubJson&) { return depth <= 8; };
  HubJson json = HubJson::parse(text, shallow, false);
  return json.is_discarded() ? HubJson() : json;
}

std::string text_at(const HubJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool read_size(const HubJson& object, std::uint64_t& size) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_unsigned()) return false;
  size = found->get<std::uint64_t>();
  return size < (std::uint64_t{1} << 50);
}

Status malformed(const char* what) {
  return data_loss("the hub's answer is malformed: {}; is HF_ENDPOINT the address of a hub?", what);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

Result<std::string> parse_commit(std::string_view text) {
  const HubJson json = parse_hub_json(text);
  if (!json.is_object()) return malformed("it is not a JSON object");
  std::string commit = text_at(json, "sha");
  if (!is_hex(commit, 40) && !is_hex(commit, 64)) return malformed("'sha' is no commit");
  return commit;
}

Status parse_tree(std::string_view text, std::vector<HubFile>& files) {
  const HubJson json = parse_hub_json(text);
  if (!json.is_array()) return malformed("its list of files is not a JSON array");
  for (const HubJson& entry : json) {
    if (!entry.is_object()) return malformed("its list of files holds something else");
    if (text_at(entry, "type") != "file") continue;
    HubFile file;
    file.path = text_at(entry, "path");
    if (!file.path.ends_with(".gguf")) continue;
    if (!is_safe_path(file.path))
      return data_loss("the hub lists a file whose name would leave the cache folder: '{}'; nothing is fetched",
                       file.path.substr(0, 300));
    if (!read_size(entry, file.size)) return malformed("a file has no size");
    file.oid = text_at(entry, "oid");
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
      file.oid = text_at(*lfs, "oid");
      file.is_sha256 = true;
      if (!read_size(*lfs, file.size)) return malformed("a file has no size");
    }
    if (!is_hex(file.oid, file.is_sha256 ? 64 : 40)) return malformed("a file has no hash");
    files.push_back(std::move(file));
  }
  return {};
}

std::string next_page(std::string_view link) {
  // <URL>; rel="next", <URL>; rel="last"
  while (true) {
    const std::size_t begin = link.find('<');
    const std::size_t end = link.find('>', begin == std::string_view::npos ? 0 : begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return "";
    const std::size_t rest = std::min(link.find('<', end), link.size());
    const std::string_view parameters = link.substr(end + 1, rest - end - 1);
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos)
      return std::string(link.substr(begin + 1, end - begin - 1));
    link.remove_prefix(rest);
  }
}

std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

std::string url_escaped(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kPlain = "-._~";
  std::string out;
  for (const char c : text) {
    const bool word = (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9');
    if (word || kPlain.find(c) != std::string_view::npos || (c == '/' && keep_slashes))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string origin_of(std::string_view url) {
  std::string text(url.substr(0, 2048));
  const std::size_t scheme = text.find("://");
  if (scheme == std::string::npos) return "";
  const std::size_t end = std::min(text.find_first_of("/?#", scheme + 3), text.size());
  text.resize(end);
  std::ranges::transform(text, text.begin(), lower);
  const std::string_view kind = std::string_view(text).substr(0, scheme);
  if ((kind != "http" && kind != "https") || text.find('@') != std::string::npos || end == scheme + 3) return "";
  for (const auto& [usual, port] : {std::pair{"http", ":80"}, std::pair{"https", ":443"}})
    if (kind == usual && text.ends_with(port)) text.resize(text.size() - std::string_view(port).size());
  return text;
}

}  // namespace kvasir::hub

#include "server/kv_events/kv_event_batch.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/http/random_name.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr const char* kMedium = "cpu";

// Returns one entry per block.
Json extra_keys_of(const KvEvent& event) {
  if (event.salt.empty()) return nullptr;
  Json keys = Json::array();
  keys.push_back(Json(event.salt));
  for (std::size_t block = 1; block < event.hashes.size(); ++block) keys.push_back(nullptr);
  return keys;
}

Json json_of(const KvEvent& event) {
  Json json = Json::array();
  switch (event.kind) {
    case KvEvent::Kind::kStored:
      json.push_back("BlockStored");
      json.push_back(Json(event.hashes));
      json.push_back(event.parent == 0 ? Json() : Json(event.parent));
      json.push_back(Json(event.tokens));
      json.push_back(event.tokens.size() / event.hashes.size());
      json.push_back(nullptr);  // id of the LoRA adapter
      json.push_back(kMedium);
      json.push_back(nullptr);  // name of the LoRA adapter
      json.push_back(extra_keys_of(event));
      json.push_back(nullptr);  // group of layers: there is only one
      break;
    case KvEvent::Kind::kRemoved:
      json.push_back("BlockRemoved");
      json.push_back(Json(event.hashes));
      json.push_back(kMedium);
      json.push_back(nullptr);
      break;
    case KvEvent::Kind::kCleared: json.push_back("AllBlocksCleared"); break;
  }
  return json;
}

}  // namespace

std::size_t bytes_of(const KvEventBatch& batch) {
  std::size_t bytes = sizeof(batch);
  for (const KvEvent& event : batch.events) {
    bytes += sizeof(event) + event.hashes.size() * sizeof(event.hashes[0]) + event.tokens.size() * sizeof(int);
    for (const std::string& part : event.salt) bytes += sizeof(part) + part.size();
  }
  return bytes;
}

std::string encode(const KvEventBatch& batch) {
  Json events = Json::array();
  for (const KvEvent& event : batch.events) events.push_back(json_of(event));
  Json message = Json::array();
  message.push_back(batch.time);
  message.push_back(std::move(events));
  message.push_back(0);
  std::string bytes;
  Json::to_msgpack(message, bytes);
  return bytes;
}

void KvEventCollector::stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens,
                              std::string_view salt, std::string_view codec, std::string_view adapters) {
  if (!events_.empty()) {
    KvEvent& last = events_.back();
    if (last.kind == KvEvent::Kind::kStored && last.hashes.back() == parent &&
        last.tokens.size() == last.hashes.size() * tokens.size()) {
      last.hashes.push_back(hash);
      last.tokens.insert(last.tokens.end(), tokens.begin(), tokens.end());
      return;
    }
  }
  KvEvent event{KvEvent::Kind::kStored, {hash}, parent, {tokens.begin(), tokens.end()}, {}};
  if (parent == 0) event.salt = published(salt);
  if (parent == 0 && !codec.empty()) event.salt.push_back("kv.codec=" + std::string(codec));
  if (parent == 0 && !adapters.empty()) event.salt.push_back("kv.adapters=" + std::string(adapters));
  events_.push_back(std::move(event));
}

void KvEventCollector::removed(std::uint64_t hash) {
  if (!events_.empty() && events_.back().kind == KvEvent::Kind::kRemoved) {
    events_.back().hashes.push_back(hash);
    return;
  }
  events_.push_back({KvEvent::Kind::kRemoved, {hash}, 0, {}, {}});
}

void KvEventCollector::clear() {
  events_.clear();
  events_.push_back({KvEvent::Kind::kCleared, {}, 0, {}, {}});
}

KvEventBatch KvEventCollector::take(double time) {
  return {time, std::exchange(events_, {})};
}

std::vector<std::string> KvEventCollector::published(std::string_view salt) {
  const std::size_t end = salt.find('\0');
  const std::string secret(salt.substr(0, end));
  std::vector<std::string> parts;
  if (!secret.empty()) {
    std::string& name = names_[secret];
    if (name.empty()) name = "tenant-" + random_name(4);
    parts.push_back(name);
  }
  if (end != std::string_view::npos) parts.emplace_back(salt.substr(end + 1));
  return parts;
}

}  // namespace kvasir::server

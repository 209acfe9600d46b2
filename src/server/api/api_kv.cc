#include "server/api/api_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"
#include "server/fields/json_fields.h"
#include "server/fields/lora_field.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr double kMostTtl = 30.0 * 24 * 3600;  // a month, in seconds
// Fields of the object "kv".
constexpr std::string_view kKvFields[] = {"policy", "codec", "demote", "thoughts", "quality",
                                          "pin",    "ttl",   "bypass", "inspect"};
constexpr std::string_view kQualityFields[] = {"kl", "every", "stride", "least", "most"};
constexpr std::size_t kMostActions = 64;
constexpr std::size_t kLongestHintName = 256;

Status malformed(std::string_view what) {
  return invalid_argument("'kv_hints' is malformed: {}", what).about({"kv_hints"});
}

Status read_ttl(const Json& object, const char* field, double& ttl) {
  KVASIR_RETURN_IF_ERROR(read_field(object, field, ttl));
  if (ttl >= 0 && ttl <= kMostTtl) return {};
  return invalid_argument("'{}' must be 0 (no limit) to {} seconds", field, kMostTtl).about({field});
}

Status apply(const Json& payload, RequestOptions& options, KvHints::Action& action) {
  action.outcome = "applied";
  if (action.type == "pin") {
    options.pin = true;
  } else if (action.type == "retain") {
    if (!read_ttl(payload, "ttl_seconds", options.ttl).ok())
      return malformed("a retain's payload.ttl_seconds must be a number of seconds, at most a month");
  } else if (action.type == "demote") {
    action.outcome = "no_op";
    action.reason = "memory is given up least recently used first, and disk or Redis have what was read already";
  } else if (action.type == "prefetch") {
    action.outcome = "no_op";
    action.reason = "each request fetches its prefix from disk or Redis where that is faster than computing it";
  } else {
    action.outcome = "ignored";
    action.reason = "unknown action_type";
  }
  return {};
}

// Reads "quality": {kl, every, stride, least, most}.
Status read_quality(const Json& kv, std::optional<QualityOptions>& quality) {
  const Json* given = find_field(kv, "quality");
  if (given == nullptr) return {};
  if (!given->is_object()) return wrong_field("quality", R"(an object such as {"kl": 0.05})");
  for (const auto& [name, value] : given->items())
    if (std::ranges::find(kQualityFields, name) == std::end(kQualityFields))
      return invalid_argument("'quality' has no field '{}'; it has: {}", name.substr(0, 64),
                              fmt::join(kQualityFields, ", "));
  QualityOptions options;
  options.kl = 0;
  std::int64_t every = options.every, stride = options.stride;
  KVASIR_RETURN_IF_ERROR(read_field(*given, "kl", options.kl));
  KVASIR_RETURN_IF_ERROR(read_whole(*given, "every", 1, kMostQualityEvery, every));
  KVASIR_RETURN_IF_ERROR(read_whole(*given, "stride", 1, kMostQualityEvery, stride));
  KVASIR_RETURN_IF_ERROR(read_whole(*given, "least", 0, kMostGenerated, options.least));
  KVASIR_RETURN_IF_ERROR(read_whole(*given, "most", 0, kMostGenerated, options.most));
  options.every = static_cast<int>(every);
  options.stride = given->contains("stride") ? static_cast<int>(stride) : default_stride(options.every);
  KVASIR_RETURN_IF_ERROR(check_quality(options));
  quality = options;
  return {};
}

}  // namespace

Status read_kv(const Fields& body, RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(read_lora(body, options.lora));
  const Json* kv = find_field(body, "kv");
  if (kv == nullptr) return {};
  if (!kv->is_object()) return wrong_field("kv", "an object");
  for (const auto& [name, value] : kv->items())
    if (std::ranges::find(kKvFields, name) == std::end(kKvFields))
      return invalid_argument("'kv' has no field '{}'; it has: {}", name.substr(0, 64), fmt::join(kKvFields, ", "))
          .about({"kv"});
  const auto in_kv = [](const Status& status, const char* field) {
    return status.ok() ? Status() : invalid_argument("in 'kv', {}", status.message()).about({field});
  };
  KVASIR_RETURN_IF_ERROR(in_kv(read_text(*kv, "policy", 4096, options.policy), "kv.policy"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_text(*kv, "demote", 256, options.demote), "kv.demote"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_text(*kv, "thoughts", 64, options.thoughts), "kv.thoughts"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_quality(*kv, options.quality), "kv.quality"));
  // Clients must not learn which files exist.
  if (options.policy.find("profile=") != std::string::npos)
    return invalid_argument("in 'kv', a policy names a file (profile=); only whoever starts the server may do that")
        .about({"kv.policy"});
  KVASIR_RETURN_IF_ERROR(in_kv(read_text(*kv, "codec", 256, options.codec), "kv.codec"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_field(*kv, "pin", options.pin), "kv.pin"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_field(*kv, "bypass", options.bypass), "kv.bypass"));
  KVASIR_RETURN_IF_ERROR(in_kv(read_field(*kv, "inspect", options.inspect), "kv.inspect"));
  return in_kv(read_ttl(*kv, "ttl", options.ttl), "kv.ttl");
}

Status read_kv_hints(const Fields& body, RequestOptions& options, KvHints& hints) {
  const Json* found = find_field(body, "kv_hints");
  if (found == nullptr) return {};
  if (!found->is_object()) return malformed("it must be an object");
  const Fields given(*found);
  hints.given = true;
  std::string version;
  if (!read_text(given, "protocol_version", 32, version).ok() || version.empty())
    return malformed("protocol_version must be a string, such as \"0.1\"");
  if (!read_text(given, "message_id", kLongestHintName, hints.message_id).ok())
    return malformed("message_id must be a string of at most 256 bytes");
  const Json* actions = find_field(given, "actions");
  if (actions == nullptr || !actions->is_array() || actions->size() > kMostActions)
    return malformed("actions must be a list of at most 64 actions");
  for (const Json& each : *actions) {
    KvHints::Action action;
    if (!each.is_object() || !read_text(each, "action_id", kLongestHintName, action.id).ok() ||
        !read_text(each, "action_type", kLongestHintName, action.type).ok() || action.type.empty())
      return malformed("each action must be an object with strings action_id and action_type");
    const Json* payload = find_field(each, "payload");
    if (payload != nullptr && !payload->is_object()) return malformed("a payload must be an object");
    if (version.starts_with("0.")) {
      KVASIR_RETURN_IF_ERROR(apply(payload != nullptr ? *payload : Json::object(), options, action));
    } else {
      action.outcome = "ignored";
      action.reason = "unknown protocol_version";
    }
    hints.actions.push_back(std::move(action));
  }
  body.add_nested("kv_hints", given);
  return {};
}

Json hints_answer(const KvHints& hints) {
  Json actions = Json::array();
  for (const KvHints::Action& action : hints.actions) {
    actions.push_back({{"action_id", action.id}, {"action_type", action.type}, {"outcome", action.outcome}});
    if (!action.reason.empty()) actions.back()["reason"] = action.reason;
  }
  return {{"protocol_version", "0.1"}, {"message_id", hints.message_id}, {"actions", std::move(actions)}};
}

}  // namespace kvasir::server

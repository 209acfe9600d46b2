#include "server/fields/known_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/status.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

struct RefusedField {
  const char* name;
  // The value that changes nothing, as JSON; besides it null, "", {} and [] never do. "": there is none.
  const char* neutral;
  const char* instead;  // what the client can do
};

constexpr const char* kOmit = "omit it";
constexpr const char* kUseTools = "use 'tools' and 'tool_choice'";

constexpr RefusedField kRefused[] = {
    // Tools.
    {"functions", "", kUseTools},
    {"function_call", R"("none")", kUseTools},
    // Formats of the answer.
    {"format", "", "use 'response_format'"},
    // Other forms of input and output.
    {"audio", "", kOmit},
    {"images", "", kOmit},
    {"modalities", R"(["text"])", kOmit},
    {"suffix", "", kOmit},
    {"prompt_embeds", "", "send a text or token ids as 'prompt'"},
    {"documents", "", "put the documents into the messages"},
    {"web_search_options", "", kOmit},
    {"chat_template", "", "a template is code, which only whoever starts the server may give: --chat-template"},
    {"add_special_tokens", "", "omit it, or send token ids as 'prompt'"},
    {"skip_special_tokens", "true", kOmit},
    {"spaces_between_special_tokens", "true", kOmit},
    {"return_tokens_as_token_ids", "false", "use 'return_token_ids'"},
    {"return_tokens", "false", "use 'return_token_ids'"},
    {"return_prompt_text", "false", "use POST /v1/chat/completions/render"},
    {"return_progress", "false", kOmit},
    {"logprob_token_ids", "", "use 'logprobs'"},
    {"n_probs", "0", "use 'logprobs'"},
    {"post_sampling_probs", "false", "use 'logprobs'"},
    {"timings_per_token", "false", kOmit},
    // Sampling.
    {"mirostat", "0", "use 'temperature' and 'top_p'"},
    {"mirostat_mode", "0", "use 'temperature' and 'top_p'"},
    {"use_beam_search", "false", "use 'best_of'"},
    {"length_penalty", "1", kOmit},
    {"tfs_z", "1", "use 'min_p'"},
    {"top_a", "0", "use 'min_p'"},
    {"epsilon_cutoff", "0", "use 'min_p'"},
    {"eta_cutoff", "0", "use 'min_p'"},
    {"min_keep", "0", kOmit},
    {"samplers", "", "the order of sampling is fixed"},
    {"dry_sequence_breakers", "", "they are line breaks, quotation marks, colons and asterisks"},
    {"logits_processors", "", "use 'logit_bias'"},
    {"repetition_detection", "", "use 'dry_multiplier'"},
    {"watermarking", "false", kOmit},
    // Limits and the cache.
    {"n_predict", "-1", "use 'max_tokens'"},
    {"t_max_predict_ms", "0", "use 'max_tokens'"},
    {"n_keep", "0", "use 'kv.policy'"},
    {"cache_prompt", "true", "use 'kv.bypass'"},
    {"kv_transfer_params", "", kOmit},
    {"ec_transfer_params", "", kOmit},
};

// Refused in completions, which render no chat template.
constexpr RefusedField kOfChats[] = {
    {"tools", "", "use /v1/chat/completions"},
    {"tool_choice", R"("none")", "use /v1/chat/completions"},
};

bool changes_nothing(const RefusedField& field, const Json& value, bool chat) {
  if ((value.is_structured() && value.empty()) || value == "") return true;
  // Without tools "auto" calls none.
  for (const std::string_view name : {"function_call", "tool_choice"})
    if (value == "auto" && field.name == name) return true;
  // A chat template writes its special tokens itself.
  if (field.name == std::string_view("add_special_tokens")) return value == !chat;
  return field.neutral[0] != '\0' && value == Json::parse(field.neutral);
}

Status refuse_fields(const Fields& body, std::span<const RefusedField> refused, bool chat) {
  for (const RefusedField& field : refused) {
    const Json* found = body.find(field.name);
    if (found == nullptr || changes_nothing(field, *found, chat)) continue;
    return make_status(StatusCode::kUnsupported, "'{}' is not supported here; {}", field.name, field.instead)
        .about({field.name});
  }
  return {};
}

constexpr std::size_t kMostMetadata = 16;
constexpr std::size_t kLongestKey = 64;
constexpr std::size_t kLongestValue = 512;  // of metadata, users and cache keys

// As in OpenAI's API, which keeps it with a stored answer.
Status check_metadata(const Json& body) {
  const Json* metadata = find_field(body, "metadata");
  if (metadata == nullptr) return {};
  constexpr const char* kNeeds = "an object of at most 16 strings of at most 512 bytes, with names of at most 64";
  if (!metadata->is_object() || metadata->size() > kMostMetadata) return wrong_field("metadata", kNeeds);
  for (const auto& [name, value] : metadata->items())
    if (name.size() > kLongestKey || !value.is_string() || value.get_ref<const std::string&>().size() > kLongestValue)
      return wrong_field("metadata", kNeeds);
  return {};
}

Status refuse_value(const char* field, const Json& value, std::string_view instead) {
  return make_status(StatusCode::kUnsupported, "'{}' is {:.64}, which is not supported here; {}", field, value.dump(),
                     instead)
      .about({field});
}

}  // namespace

Status refuse_known(const Fields& body, bool chat) {
  KVASIR_RETURN_IF_ERROR(refuse_fields(body, kRefused, chat));
  return chat ? Status() : refuse_fields(body, kOfChats, chat);
}

Status check_hints(const Fields& fields) {
  const Json& body = fields.object();  // these fields stay unknown: the header names them
  KVASIR_RETURN_IF_ERROR(check_metadata(body));
  std::string text;
  for (const char* field : {"user", "safety_identifier", "prompt_cache_key"})
    KVASIR_RETURN_IF_ERROR(read_text(body, field, kLongestValue, text));
  bool store = false;
  KVASIR_RETURN_IF_ERROR(read_field(fields, "store", store));
  if (store) return refuse_value("store", true, "answers are not kept; omit it");
  if (const Json* tier = fields.find("service_tier"); tier != nullptr && *tier != "auto" && *tier != "default")
    return refuse_value("service_tier", *tier, "all requests are served alike; use \"auto\", or 'priority'");
  if (const Json* verbosity = fields.find("verbosity"); verbosity != nullptr && *verbosity != "medium")
    return refuse_value("verbosity", *verbosity, "say in the messages how long the answer should be");
  return {};
}

}  // namespace kvasir::server

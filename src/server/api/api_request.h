// Reads bodies of the OpenAI API as requests of the engine.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/grammar.h"
#include "kvasir/request.h"
#include "kvasir/status.h"
#include "server/api/api_kv.h"
#include "server/fields/json_fields.h"
#include "server/fields/prompt_fields.h"

namespace kvasir::server {

struct ApiRequest {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;    // stream_options.include_usage
  bool usage_in_chunks = false;  // and continuous_usage_stats
  // The answer's text begins with the prompt; that of a chat with the assistant's message that it continues.
  bool echo = false;
  bool logprobs = false;           // asked for by the client
  int prompt_logprobs = -1;        // the number that the client asked for; -1: none
  bool return_token_ids = false;   // of prompt and answer
  bool names_tier = false;         // service_tier is given
  bool token_limit_given = false;  // false: options.generate.max_tokens is the API's default: none, or 16
  // So many of the prompt's tokens are kept, -1: as many as the trained context has room for. None: all.
  std::optional<std::int64_t> truncate_prompt;
  bool keeps_first = false;        // the first of them, not the last
  int n = 1;                       // choices per prompt: the best n of options.samples
  std::string model;               // "" if the request names none
  std::string session;             // name of the session that it continues; "" for none
  std::vector<ApiPrompt> prompts;  // of completions; choice i of prompt p has index p * n + i
  KvHints hints;
  std::optional<GrammarSource> grammar;           // that each answer matches
  const char* grammar_field = "response_format";  // which asked for it; a string literal
  // Where the body has the schema of `grammar`, whose keys are in order there; empty: `grammar` is as it should be.
  std::vector<std::string> grammar_path;
  std::vector<std::string> thinking_fields;  // that ask for thoughts: without effect where the template writes none
  const char* budget_field = "thinking_token_budget";  // which gave options.generate.thought_budget; a literal
  std::vector<std::string> tools_path;                 // as grammar_path, of the tools
  const char* tools_schema = nullptr;                  // of tools in the form that chat_tools() reads; a string literal
  std::vector<std::string> ignored;                    // names of fields that have no effect
  RequestOptions options;                              // for each prompt; for a chat, with its messages
};

inline constexpr std::size_t kMostPrompts = 64;
inline constexpr std::size_t kMostTexts = 128;  // samples of one answer that are under way together

// Parses a JSON object of at most 64 levels. Errors: kInvalidArgument with the reason.
Result<nlohmann::json> parse_body(std::string_view body);

// Reads the body of POST /v1/chat/completions, or of /v1/completions. Fields that are unknown are `ignored`. Errors:
// kInvalidArgument for a value of the wrong type or out of range, kUnsupported for a field that cannot be honoured;
// both are about() the field. Roles, token ids and the policy are not checked here. `sampling`: for requests that give
// no temperature. If they give one, absent fields default as in OpenAI's API: the distribution is not truncated.
Result<ApiRequest> read_request(const Fields& body, bool chat, const SamplingOptions& sampling);

// Replaces the grammar and the tools of a request that was read from a parsed body, which has lost the order of their
// keys, by those of the body itself.
void restore_order(std::string_view body, ApiRequest& request);

// Reads only the fields of the prompt: messages and chat_template_kwargs of a chat, or prompts. Errors: as
// read_request.
Result<ApiRequest> read_prompts(const Fields& body, bool chat);

// Whether `id` may name a session: 1 to 64 letters, digits, '-' and '_'.
bool is_session_id(std::string_view id);

}  // namespace kvasir::server

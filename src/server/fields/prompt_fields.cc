#include "server/fields/prompt_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPromptNeeds = "a string, a list of token ids, or a list of either";

// Whether a number is whole, at any size.
bool is_whole(const Json& number) {
  return number.is_number_integer() ||
         (number.is_number_float() && number.get<double>() == std::floor(number.get<double>()));
}

Result<std::vector<std::int32_t>> read_tokens(const char* field, const Json& list) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& token : list) {
    const std::optional<std::int64_t> id = whole_number(token);
    if (!id && !is_whole(token)) return wrong_field(field, kPromptNeeds);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max())
      return invalid_argument("'{}' has the token id {}, which is outside the vocabulary", field, token.dump())
          .about({field});
    tokens.push_back(static_cast<std::int32_t>(*id));
  }
  return tokens;
}

Status read_prompt(const char* field, const Json& prompt, std::vector<ApiPrompt>& prompts) {
  if (!prompt.is_string() && !prompt.is_array()) return wrong_field(field, kPromptNeeds);
  if (prompt.empty() || prompt == "") return invalid_argument("'{}' is empty; give some text", field).about({field});
  ApiPrompt& one = prompts.emplace_back();
  if (prompt.is_string()) {
    one.text = prompt.get<std::string>();
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(one.tokens, read_tokens(field, prompt));
  return {};
}

}  // namespace

Status read_prompts(const Fields& body, const char* field, std::size_t most, std::vector<ApiPrompt>& prompts) {
  const Json* prompt = find_field(body, field);
  if (prompt == nullptr) return invalid_argument("'{}' is missing", field).about({field});
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return read_prompt(field, *prompt, prompts);
  if (prompt->size() > most)
    return invalid_argument("'{}' has {} prompts; at most {} go together", field, prompt->size(), most).about({field});
  for (const Json& each : *prompt) KVASIR_RETURN_IF_ERROR(read_prompt(field, each, prompts));
  return {};
}

}  // namespace kvasir::server

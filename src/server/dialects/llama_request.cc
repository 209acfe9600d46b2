#include "server/dialects/llama_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/dialects/infill.h"
#include "server/dialects/llama_options.h"
#include "server/fields/grammar_fields.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLlamaPrompt =
    "a string, a list of token ids and strings that are one prompt, or a list of prompts";

class LlamaReader {
 public:
  LlamaReader(const Json& body, const ReadContext& context) : body_(body), context_(context) {}

  Result<LlamaBody> read(bool infill) && {
    ApiRequest& request = read_.request;
    KVASIR_RETURN_IF_ERROR(refuse_others());
    KVASIR_RETURN_IF_ERROR(read_field(body_, "model", request.model));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "stream", request.stream));
    request.options.generate.sampling = context_.sampling;
    KVASIR_RETURN_IF_ERROR(read_llama_options(body_, request.options.generate));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "ignore_eos", request.options.generate.ignore_eos));
    KVASIR_RETURN_IF_ERROR(read_limits());
    KVASIR_RETURN_IF_ERROR(read_biases());
    KVASIR_RETURN_IF_ERROR(read_grammar_fields(body_, request, EmptyGrammar::kNone));
    KVASIR_RETURN_IF_ERROR(read_cache());
    request.options.parse_special = true;
    KVASIR_RETURN_IF_ERROR(infill ? read_infill() : read_prompts());
    const auto all = request.n * std::ssize(request.prompts);
    if (all > kMostSamples)
      return invalid_argument("{} prompts of {} texts each are {}; at most {} go together", request.prompts.size(),
                              request.n, all, kMostSamples)
          .about({"prompt"});
    KVASIR_RETURN_IF_ERROR(
        refuse_other_constraints(body_, "use 'grammar' or 'json_schema'; tools are for /v1/chat/completions"));
    request.ignored = body_.unknown();
    read_.shown.generate = request.options.generate;
    read_.shown.n = request.n;
    read_.shown.stream = request.stream;
    return std::move(read_);
  }

 private:
  Status refuse_others() const {
    KVASIR_RETURN_IF_ERROR(refuse_fields(
        body_, {"response_fields", "post_sampling_probs", "return_progress", "timings_per_token", "image_data"}));
    for (const char* field : {"t_max_predict_ms", "t_max_prompt_ms", "n_indent", "n_discard", "min_keep"}) {
      const Json* found = find_field(body_, field);
      if (found == nullptr) continue;
      if (!found->is_number()) return wrong_field(field, "a number");
      if (found->get<double>() > 0) return not_done(field, "is not supported here; omit it");
    }
    return {};
  }

  Status read_limits() {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    ApiRequest& request = read_.request;
    std::int64_t most = -1;  // -1: until the model ends; -2: until the context is full
    for (const char* field : {"max_tokens", "n_predict"})
      KVASIR_RETURN_IF_ERROR(read_whole(body_, field, -2, kMost, most));
    request.options.generate.max_tokens = most < 0 ? -1 : most;
    request.token_limit_given = most >= 0;
    for (const char* field : {"n", "n_cmpl"}) KVASIR_RETURN_IF_ERROR(read_whole(body_, field, 1, 64, request.n));
    request.options.samples = request.n;
    std::int64_t keep = 0;
    KVASIR_RETURN_IF_ERROR(read_whole(body_, "n_keep", -1, kMost, keep));
    if (keep < 0) return not_done("n_keep", "can be 0 or more here");
    request.options.protect = keep;
    int probabilities = 0;
    KVASIR_RETURN_IF_ERROR(read_whole(body_, "n_probs", 0, 100, probabilities));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "return_tokens", read_.shown.tokens));
    read_.shown.probabilities = probabilities > 0;
    if (read_.shown.probabilities || read_.shown.tokens) request.options.generate.logprobs = probabilities;
    return {};
  }

  // A list of [token, bias], or an object of token: bias; false bans the token.
  Status read_biases() {
    const Json* given = find_field(body_, "logit_bias");
    if (given == nullptr) return {};
    constexpr const char* kNeeds = "at most 1024 pairs of a token id and a number from -100 to 100, or false";
    auto& list = read_.request.options.generate.sampling.logit_bias;
    const auto add = [&](std::optional<std::int64_t> token, const Json& bias) {
      if (!token || *token < 0 || *token > std::numeric_limits<std::int32_t>::max()) return false;
      if (!bias.is_number() && bias != false) return false;
      list.emplace_back(static_cast<std::int32_t>(*token), bias.is_number() ? bias.get<float>() : -100.0F);
      return true;
    };
    if (!given->is_structured() || given->size() > 1024) return wrong_field("logit_bias", kNeeds);
    if (given->is_array()) {
      for (const Json& pair : *given)
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !add(whole_number(pair[0]), pair[1]))
          return wrong_field("logit_bias", kNeeds);
      return {};
    }
    for (const auto& [name, bias] : given->items()) {
      std::int64_t token = -1;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
      if (error != std::errc() || end != name.data() + name.size() || !add(token, bias))
        return wrong_field("logit_bias", kNeeds);
    }
    return {};
  }

  Status read_cache() {
    bool cache = true;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "cache_prompt", cache));
    KVASIR_RETURN_IF_ERROR(read_kv(body_, read_.request.options));
    if (!cache) read_.request.options.bypass = true;
    // Requests have no fixed places here: a slot other than -1 stays unknown, so that the header names it.
    if (const Json* slot = find_field(body_.object(), "id_slot"); slot != nullptr && *slot == -1)
      find_field(body_, "id_slot");
    return {};
  }

  Status read_prompts() {
    const Json* prompt = find_field(body_, "prompt");
    if (prompt == nullptr) return invalid_argument("'prompt' is missing").about({"prompt"});
    const auto is_part = [](const Json& each) { return each.is_number() || each.is_string(); };
    // Strings alone are prompts of their own; with ids among them they are parts of one.
    const bool one = !prompt->is_array() || (std::ranges::all_of(*prompt, is_part) &&
                                             std::ranges::any_of(*prompt, [](const Json& p) { return p.is_number(); }));
    if (one) return add_prompt(*prompt);
    if (prompt->empty()) return invalid_argument("'prompt' is empty; give some text").about({"prompt"});
    if (prompt->size() > kMostPrompts)
      return invalid_argument("'prompt' has {} prompts; at most {} go together", prompt->size(), kMostPrompts)
          .about({"prompt"});
    for (const Json& each : *prompt) KVASIR_RETURN_IF_ERROR(add_prompt(each));
    return {};
  }

  Status add_prompt(const Json& prompt) {
    if (prompt.is_string()) {
      const auto& text = prompt.get_ref<const std::string&>();
      if (text.empty()) return invalid_argument("'prompt' is empty; give some text").about({"prompt"});
      read_.request.prompts.push_back({text, {}});
      read_.shown.prompts.push_back(text);
      return {};
    }
    if (!prompt.is_array() || prompt.empty()) return wrong_field("prompt", kLlamaPrompt);
    std::vector<std::int32_t> tokens;
    for (const Json& part : prompt) {
      if (part.is_string()) {
        Result<std::vector<std::int32_t>> more =
            context_.text.encode(part.get_ref<const std::string&>(), tokens.empty(), true);
        if (!more.ok()) return Status(more.status()).about({"prompt"});
        tokens.insert(tokens.end(), more->begin(), more->end());
        continue;
      }
      const std::optional<std::int64_t> token = part.is_number() ? whole_number(part) : std::nullopt;
      if (!token || *token < 0 || *token > std::numeric_limits<std::int32_t>::max())
        return wrong_field("prompt", kLlamaPrompt);
      tokens.push_back(static_cast<std::int32_t>(*token));
    }
    return add_tokens(std::move(tokens));
  }

  Status add_tokens(std::vector<std::int32_t> tokens) {
    Result<std::string> text = context_.text.decode(tokens, true);
    if (!text.ok()) return Status(text.status()).about({"prompt"});
    read_.shown.prompts.push_back(std::move(*text));
    read_.request.prompts.push_back({{}, std::move(tokens)});
    return {};
  }

  Status read_infill() {
    Infill infill;
    for (const char* field : {"input_prefix", "input_suffix"})
      if (find_field(body_, field) == nullptr) return invalid_argument("'{}' is missing", field).about({field});
    KVASIR_RETURN_IF_ERROR(read_field(body_, "input_prefix", infill.prefix));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "input_suffix", infill.suffix));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "prompt", infill.begun));
    if (const Json* extra = find_field(body_, "input_extra"); extra != nullptr) {
      if (!extra->is_array() || extra->size() > 256)
        return wrong_field("input_extra", "a list of at most 256 objects with 'text' and 'filename'");
      for (const Json& each : *extra) {
        Infill::File& file = infill.files.emplace_back();
        if (!each.is_object() || !read_field(each, "text", file.text).ok() ||
            !read_field(each, "filename", file.name).ok() || file.text.empty())
          return wrong_field("input_extra", "a list of objects with 'text' and 'filename'");
      }
    }
    KVASIR_ASSIGN_OR_RETURN(ApiPrompt prompt, infill_prompt(infill, context_.text));
    return add_tokens(std::move(prompt.tokens));
  }

  const Fields body_;
  const ReadContext& context_;
  LlamaBody read_;
};

}  // namespace

Result<LlamaBody> read_llama(const Json& body, bool infill, const ReadContext& context) {
  return LlamaReader(body, context).read(infill);
}

}  // namespace kvasir::server

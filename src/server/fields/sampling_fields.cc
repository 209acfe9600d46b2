#include "server/fields/sampling_fields.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Replaces seed 0, for which the engine would draw a seed. In the API 0 is a seed like any other.
constexpr std::uint64_t kSeedForZero = std::uint64_t{1} << 63;

}  // namespace

Status read_seed(const Fields& body, std::uint64_t& seed) {
  const Json* found = find_field(body, "seed");
  if (found == nullptr) return {};
  if (found->is_number_unsigned()) {
    seed = found->get<std::uint64_t>();
  } else {
    const std::optional<std::int64_t> number = whole_number(*found);
    if (!number)
      return wrong_field("seed", fmt::format("a whole number from {} to {}", std::numeric_limits<std::int64_t>::min(),
                                             std::numeric_limits<std::uint64_t>::max()));
    seed = static_cast<std::uint64_t>(*number);
  }
  if (seed == 0) seed = kSeedForZero;
  return {};
}

Status read_stops(const Fields& body, const char* field, std::vector<std::string>& stops) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  const Json list = found->is_string() ? Json::array({*found}) : *found;
  if (!list.is_array() || list.size() > kMostStops)
    return wrong_field(field, fmt::format("a string or a list of at most {} strings", kMostStops));
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty())
      return wrong_field(field, "a string or a list of strings that are not empty");
    stops.push_back(stop.get<std::string>());
  }
  return {};
}

SamplingOptions usual_sampling(const Fields& body, const SamplingOptions& usual) {
  SamplingOptions sampling = usual;
  if (find_field(body, "temperature") == nullptr) return sampling;
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;
  sampling.repetition_penalty = 1;
  return sampling;
}

Status read_window(const Fields& body, const char* field, int least, int& tokens) {
  KVASIR_RETURN_IF_ERROR(read_whole(body, field, -1, kMaxPenaltyWindow, tokens));
  if (tokens < 0) tokens = kMaxPenaltyWindow;
  if (tokens < least) return invalid_argument("'{}' must be at least {}, or -1", field, least).about({field});
  return {};
}

namespace {

// Reads a list of token ids. Errors: also for more than `most`.
Status read_ids(const Fields& body, const char* field, std::size_t most, std::vector<std::int32_t>& ids) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  if (!found->is_array() || found->size() > most)
    return wrong_field(field, fmt::format("a list of at most {} token ids", most));
  for (const Json& each : *found) {
    const std::optional<std::int64_t> id = whole_number(each);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max())
      return invalid_argument("'{}' has {:.64}, which is no token id", field, each.dump()).about({field});
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return {};
}

Status read_bad_words(const Fields& body, std::vector<std::string>& words) {
  const Json* found = find_field(body, "bad_words");
  if (found == nullptr) return {};
  if (!found->is_array() || found->size() > kMostBadWords)
    return wrong_field("bad_words", fmt::format("a list of at most {} strings", kMostBadWords));
  for (const Json& word : *found) {
    if (!word.is_string()) return wrong_field("bad_words", "a list of strings");
    words.push_back(word.get<std::string>());
  }
  return {};
}

Status read_logit_bias(const Fields& body, SamplingOptions& sampling) {
  const Json* bias = find_field(body, "logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object() || bias->size() > kMostBiases)
    return wrong_field("logit_bias",
                       fmt::format("an object of at most {} token ids with numbers from -100 to 100", kMostBiases));
  for (const auto& [name, value] : bias->items()) {
    std::int32_t token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0)
      return invalid_argument("'logit_bias' has the key {:.64}, which is no token id", Json(name).dump())
          .about({"logit_bias"});
    if (!value.is_number())
      return invalid_argument("'logit_bias' has {:.64} for token {}; it must be a number from -100 to 100",
                              value.dump(), token)
          .about({"logit_bias"});
    sampling.logit_bias.emplace_back(token, value.get<float>());
  }
  return {};
}

// Reads a number that has two names.
Status read_either(const Fields& body, const char* name, const char* other, float& value) {
  if (find_field(body, name) != nullptr && find_field(body, other) != nullptr)
    return invalid_argument("'{}' and '{}' are the same; omit one of them", name, other).about({other});
  KVASIR_RETURN_IF_ERROR(read_field(body, name, value));
  return read_field(body, other, value);
}

}  // namespace

Status read_sampling(const Fields& body, const SamplingOptions& usual, SamplingOptions& sampling) {
  sampling = usual_sampling(body, usual);
  KVASIR_RETURN_IF_ERROR(read_sampling_numbers(body, sampling));
  KVASIR_RETURN_IF_ERROR(read_either(body, "repetition_penalty", "repeat_penalty", sampling.repetition_penalty));
  KVASIR_RETURN_IF_ERROR(read_window(body, "dry_penalty_last_n", 1, sampling.dry_window));
  KVASIR_RETURN_IF_ERROR(read_logit_bias(body, sampling));
  return read_seed(body, sampling.seed);
}

Status read_sampling_numbers(const Fields& body, SamplingOptions& sampling) {
  constexpr std::pair<const char*, float SamplingOptions::*> kNumbers[] = {
      {"temperature", &SamplingOptions::temperature},
      {"top_p", &SamplingOptions::top_p},
      {"min_p", &SamplingOptions::min_p},
      {"top_n_sigma", &SamplingOptions::top_n_sigma},
      {"typical_p", &SamplingOptions::typical_p},
      {"xtc_probability", &SamplingOptions::xtc_probability},
      {"xtc_threshold", &SamplingOptions::xtc_threshold},
      {"dynatemp_range", &SamplingOptions::dynatemp_range},
      {"dynatemp_exponent", &SamplingOptions::dynatemp_exponent},
      {"frequency_penalty", &SamplingOptions::frequency_penalty},
      {"presence_penalty", &SamplingOptions::presence_penalty},
      {"dry_multiplier", &SamplingOptions::dry_multiplier},
      {"dry_base", &SamplingOptions::dry_base}};
  for (const auto& [name, option] : kNumbers) KVASIR_RETURN_IF_ERROR(read_field(body, name, sampling.*option));
  if (sampling.top_n_sigma < 0) sampling.top_n_sigma = 0;  // llama-server's -1: off
  KVASIR_RETURN_IF_ERROR(read_whole(body, "top_k", -1, std::numeric_limits<std::int32_t>::max(), sampling.top_k));
  if (sampling.top_k < 0) sampling.top_k = 0;  // -1: all, as in other servers
  KVASIR_RETURN_IF_ERROR(read_window(body, "repeat_last_n", 0, sampling.penalty_window));
  return read_whole(body, "dry_allowed_length", 1, kMostDryLength, sampling.dry_allowed_length);
}

Status read_endings(const Fields& body, GenerateOptions& generate) {
  KVASIR_RETURN_IF_ERROR(read_stops(body, "stop", generate.stop));
  KVASIR_RETURN_IF_ERROR(read_field(body, "include_stop_str_in_output", generate.include_stop));
  KVASIR_RETURN_IF_ERROR(read_field(body, "ignore_eos", generate.ignore_eos));
  KVASIR_RETURN_IF_ERROR(read_whole(body, "min_tokens", 0, kMostGenerated, generate.min_tokens));
  KVASIR_RETURN_IF_ERROR(read_ids(body, "stop_token_ids", kMostStopTokens, generate.stop_tokens));
  KVASIR_RETURN_IF_ERROR(read_ids(body, "allowed_token_ids", kMostAllowedTokens, generate.allowed_tokens));
  if (generate.allowed_tokens.empty() && find_field(body, "allowed_token_ids") != nullptr)
    return invalid_argument("'allowed_token_ids' is empty, so no token could follow; omit it")
        .about({"allowed_token_ids"});
  return read_bad_words(body, generate.bad_words);
}

}  // namespace kvasir::server

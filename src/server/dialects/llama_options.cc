#include "server/dialects/llama_options.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/fields/json_fields.h"
#include "server/fields/sampling_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Samplers that the engine does not have, with the values that turn them off.
Status refuse_samplers(const Fields& options) {
  constexpr std::pair<const char*, double> kOff[] = {{"tfs_z", 1}, {"mirostat", 0}, {"adaptive_target", -1}};
  for (const auto& [field, off] : kOff) {
    double value = off;
    KVASIR_RETURN_IF_ERROR(read_field(options, field, value));
    if (value != off)
      return not_done(field, fmt::format("is not supported here; omit it, or give {}, which turns it off", off));
  }
  return refuse_fields(options, {"samplers", "dry_sequence_breakers"});
}

// Prints floats as short decimals: their conversion to double would show digits that nobody gave.
Json short_number(float value) {
  return Json::parse(fmt::format("{}", value));
}

}  // namespace

Status read_llama_options(const Fields& options, GenerateOptions& generate) {
  SamplingOptions& sampling = generate.sampling;
  KVASIR_RETURN_IF_ERROR(refuse_samplers(options));
  KVASIR_RETURN_IF_ERROR(read_sampling_numbers(options, sampling));
  if (sampling.temperature < 0) sampling.temperature = 0;  // greedy
  KVASIR_RETURN_IF_ERROR(read_field(options, "repeat_penalty", sampling.repetition_penalty));
  int window = sampling.dry_window;
  KVASIR_RETURN_IF_ERROR(read_window(options, "dry_penalty_last_n", 0, window));
  if (window == 0) sampling.dry_multiplier = 0;
  if (window > 0) sampling.dry_window = window;
  // -1 asks for a random seed.
  if (const Json* seed = find_field(options, "seed"); seed == nullptr || *seed != -1)
    KVASIR_RETURN_IF_ERROR(read_seed(options, sampling.seed));
  return read_bounded_stops(options, "stop", generate.stop);
}

Json llama_settings(const GenerateOptions& generate) {
  const SamplingOptions& sampling = generate.sampling;
  return {{"seed", sampling.seed},
          {"temperature", short_number(sampling.temperature)},
          {"top_k", sampling.top_k},
          {"top_p", short_number(sampling.top_p)},
          {"min_p", short_number(sampling.min_p)},
          {"typical_p", short_number(sampling.typical_p)},
          {"top_n_sigma", short_number(sampling.top_n_sigma)},
          {"xtc_probability", short_number(sampling.xtc_probability)},
          {"xtc_threshold", short_number(sampling.xtc_threshold)},
          {"dynatemp_range", short_number(sampling.dynatemp_range)},
          {"dynatemp_exponent", short_number(sampling.dynatemp_exponent)},
          {"repeat_last_n", sampling.penalty_window},
          {"repeat_penalty", short_number(sampling.repetition_penalty)},
          {"presence_penalty", short_number(sampling.presence_penalty)},
          {"frequency_penalty", short_number(sampling.frequency_penalty)},
          {"dry_multiplier", short_number(sampling.dry_multiplier)},
          {"dry_base", short_number(sampling.dry_base)},
          {"dry_allowed_length", sampling.dry_allowed_length},
          {"dry_penalty_last_n", sampling.dry_window},
          {"n_predict", generate.max_tokens},
          {"max_tokens", generate.max_tokens},
          {"ignore_eos", generate.ignore_eos},
          {"stop", generate.stop}};
}

}  // namespace kvasir::server

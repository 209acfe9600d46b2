#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace kvasir {
namespace {

// Reads the number at `key`, within [least, most]. Returns `otherwise` if the key is absent.
Result<double> number_or(const gguf::File& file, const std::string& key, double least, double most, double otherwise) {
  if (file.find(key) == nullptr) return otherwise;
  KVASIR_ASSIGN_OR_RETURN(const double value, file.get_float(key));
  if (!(value >= least && value <= most)) return data_loss("{} is {}, outside {} to {}", key, value, least, most);
  return value;
}

struct Yarn {
  double factor = 1;
  double extrapolation = 1;  // weight of the original frequencies for short wavelengths
  double original_context = 0;
  double beta_fast = 32;  // rotations over the original context at which a wavelength counts as short
  double beta_slow = 1;   // and as long
};

// Returns the (fractional) index of the pair that makes `rotations` turns over the original context: solves
// rotations = L / wavelength for the pair.
double pair_of_rotations(const Yarn& yarn, const RotaryEmbedding& rope, double rotations) {
  return rope.dims * std::log(yarn.original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.base));
}

void apply_yarn(const Yarn& yarn, const YarnRules& rules, RotaryEmbedding* rope) {
  const double first = pair_of_rotations(yarn, *rope, yarn.beta_fast);
  const double last = pair_of_rotations(yarn, *rope, yarn.beta_slow);
  const bool exact = rules.exact_range;
  const double low = std::max(0.0, exact ? first : std::floor(first));
  const double high = std::min(rope->dims - 1.0, exact ? last : std::ceil(last));
  for (std::size_t i = 0; i < rope->inverse_frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double original = (1 - ramp) * yarn.extrapolation;
    double& frequency = rope->inverse_frequencies[i];
    frequency = frequency / yarn.factor * (1 - original) + frequency * original;
  }
}

Status read_yarn(const gguf::File& file, const std::string& scaling, std::int64_t context, const YarnRules& rules,
                 RotaryEmbedding* rope) {
  Yarn yarn;
  KVASIR_ASSIGN_OR_RETURN(yarn.factor, number_or(file, scaling + "factor", 1, 1e6, 1));
  KVASIR_ASSIGN_OR_RETURN(yarn.original_context,
                          number_or(file, scaling + "original_context_length", 1, 1e12, static_cast<double>(context)));
  KVASIR_ASSIGN_OR_RETURN(yarn.extrapolation, number_or(file, scaling + "yarn_ext_factor", 0, 1, 1));
  KVASIR_ASSIGN_OR_RETURN(yarn.beta_fast, number_or(file, scaling + "yarn_beta_fast", 1e-3, 1e6, 32));
  KVASIR_ASSIGN_OR_RETURN(yarn.beta_slow, number_or(file, scaling + "yarn_beta_slow", 1e-3, 1e6, 1));
  KVASIR_ASSIGN_OR_RETURN(const double log_multiplier, number_or(file, scaling + "yarn_log_multiplier", -1e6, 1e6, 0));
  if (rules.plain_magnitude) {
    apply_yarn(yarn, rules, rope);
    return {};
  }
  if (log_multiplier != 0 && !rules.log_multiplier)
    return unsupported("{}yarn_log_multiplier = {}: this variant of YaRN is not supported", scaling, log_multiplier);
  // With the multiplier m, the usual magnitude is divided by that of m times the logarithm.
  const auto magnitude_of = [&](double m) { return 0.1 * m * std::log(yarn.factor) + 1; };
  const double usual = magnitude_of(1) / magnitude_of(log_multiplier);
  KVASIR_ASSIGN_OR_RETURN(const double magnitude, number_or(file, scaling + "yarn_attn_factor", 1e-3, 1e3, usual));
  KVASIR_ASSIGN_OR_RETURN(const double attention, number_or(file, scaling + "attn_factor", 1e-3, 1e3, 1));
  rope->magnitude = magnitude * attention;
  apply_yarn(yarn, rules, rope);
  return {};
}

Status read_scaling(const gguf::File& file, const std::string& rope_prefix, std::int64_t context,
                    const YarnRules& rules, RotaryEmbedding* rope) {
  const std::string scaling = rope_prefix + "scaling.";
  std::string_view type = "linear";  // old files name only a factor
  if (file.find(scaling + "type") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(type, file.get_string(scaling + "type"));
  }
  const bool old_key = file.find(scaling + "factor") == nullptr;
  const std::string factor = old_key ? rope_prefix + "scale_linear" : scaling + "factor";
  if (type == "none" || type == "llama3") return {};  // Llama 3's rule comes as rope_freqs.weight
  if (type == "yarn") return read_yarn(file, scaling, context, rules, rope);
  if (type != "linear")
    return unsupported("RoPE scaling '{}' is not supported; none, linear, yarn and llama3 (frequency factors) are",
                       type.substr(0, 32));
  KVASIR_ASSIGN_OR_RETURN(const double divisor, number_or(file, factor, 1e-6, 1e6, 1));
  for (double& frequency : rope->inverse_frequencies) frequency /= divisor;
  return {};
}

// Divides angles by a tensor's values, if the file has the tensor.
Status divide_by(const gguf::File& file, std::string_view name, std::vector<double>& frequencies) {
  const gguf::Tensor* factors = file.find_tensor(name);
  if (factors == nullptr) return {};
  if (factors->type != static_cast<std::uint32_t>(DType::kF32) || factors->elements != frequencies.size())
    return data_loss("{} must hold {} F32 values, one per rotated pair", name, frequencies.size());
  if (factors->bytes.size() != frequencies.size() * sizeof(float)) return {};  // opened for its header alone
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    float factor;
    std::memcpy(&factor, factors->bytes.data() + i * sizeof factor, sizeof factor);
    if (!(factor > 0) || !std::isfinite(factor)) return data_loss("{}[{}] is {}, not positive", name, i, factor);
    frequencies[i] /= static_cast<double>(factor);
  }
  return {};
}

Status read_long_rope(const gguf::File& file, const std::string& rope_prefix, std::int64_t context,
                      RotaryEmbedding* rope) {
  for (const std::string_view factors : {kShortFactors, kLongFactors})
    if (file.find_tensor(factors) == nullptr)
      return data_loss("tensor {} is missing: this file holds no whole model with LongRoPE; convert the model again",
                       factors);
  const std::string scaling = rope_prefix + "scaling.";
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t original, file.get_uint(scaling + "original_context_length"));
  if (original < 2 || original > static_cast<std::uint64_t>(context))
    return data_loss("{}original_context_length is {}, outside 2 to the trained context of {}", scaling, original,
                     context);
  rope->original_context = static_cast<std::int64_t>(original);
  rope->long_inverse_frequencies = rope->inverse_frequencies;
  KVASIR_RETURN_IF_ERROR(divide_by(file, kShortFactors, rope->inverse_frequencies));
  KVASIR_RETURN_IF_ERROR(divide_by(file, kLongFactors, rope->long_inverse_frequencies));
  // Both have the magnitude that the paper gives the extended context.
  const double extension = static_cast<double>(context) / static_cast<double>(original);
  const double usual = std::sqrt(1 + std::log(extension) / std::log(static_cast<double>(original)));
  KVASIR_ASSIGN_OR_RETURN(rope->magnitude, number_or(file, scaling + "attn_factor", 1e-3, 1e3, usual));
  return {};
}

}  // namespace

Result<RotaryEmbedding> plain_rotary_embedding(int dims, double base) {
  if (!(base > 1)) return data_loss("a rotary base of {} is not above 1", base);
  RotaryEmbedding rope;
  rope.dims = dims;
  rope.base = base;
  rope.inverse_frequencies.resize(static_cast<std::size_t>(dims / 2));
  for (std::size_t i = 0; i < rope.inverse_frequencies.size(); ++i)
    rope.inverse_frequencies[i] = std::pow(rope.base, -2.0 * static_cast<double>(i) / dims);
  return rope;
}

Result<RotaryEmbedding> read_rotary_embedding(const gguf::File& file, std::string_view prefix, int dims,
                                              std::int64_t context, const YarnRules& rules, bool long_rotation) {
  const std::string rope_prefix = std::string(prefix) + ".rope.";
  double base = 10000;
  if (file.find(rope_prefix + "freq_base") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(base, file.get_float(rope_prefix + "freq_base"));
    if (!(base > 1)) return data_loss("{}freq_base is {}, not above 1", rope_prefix, base);
  }
  KVASIR_ASSIGN_OR_RETURN(RotaryEmbedding rope, plain_rotary_embedding(dims, base));
  const std::string type_key = rope_prefix + "scaling.type";
  std::string_view type;
  if (long_rotation && file.find(type_key) != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(type, file.get_string(type_key));
  }
  if (long_rotation &&
      (type == "longrope" || file.find_tensor(kShortFactors) != nullptr || file.find_tensor(kLongFactors) != nullptr)) {
    if (!type.empty() && type != "longrope" && type != "none")
      return unsupported("{} is '{}' in a file with LongRoPE's factors: such models are not supported", type_key,
                         type.substr(0, 32));
    if (file.find_tensor(kRotaryFactors) != nullptr)
      return unsupported("tensor {} beside LongRoPE's factors: such models are not supported", kRotaryFactors);
    KVASIR_RETURN_IF_ERROR(read_long_rope(file, rope_prefix, context, &rope));
    return rope;
  }
  KVASIR_RETURN_IF_ERROR(read_scaling(file, rope_prefix, context, rules, &rope));
  KVASIR_RETURN_IF_ERROR(divide_by(file, kRotaryFactors, rope.inverse_frequencies));
  return rope;
}

}  // namespace kvasir

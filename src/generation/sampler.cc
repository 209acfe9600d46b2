#include "generation/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

// A total order, so that the tokens kept do not depend on the selection algorithm.
constexpr auto likelier = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
};

// One step of splitmix64: spreads a seed over the generator's state.
std::uint64_t splitmix64(std::uint64_t* state) {
  std::uint64_t z = (*state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

Status check_range(const char* name, float value, float low, float high, bool low_included) {
  if (value <= high && (low_included ? value >= low : value > low)) return {};
  return invalid_argument("{} is {}; it must be {} {} and at most {}", name, value,
                          low_included ? "at least" : "greater than", low, high)
      .about({name});
}

Status check_count(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{} is {}; it must be at least {} and at most {}", name, value, low, high).about({name});
}

Status check_top_k(int value) {
  if (value >= -1) return {};
  return invalid_argument("top_k is {}; it must be at least 0, or -1 for all", value).about({"top_k"});
}

Status check_bias(std::vector<std::pair<TokenId, float>> bias) {
  if (bias.size() > kMostBiases)
    return invalid_argument("logit_bias has {} tokens; it may have {}", bias.size(), kMostBiases).about({"logit_bias"});
  std::sort(bias.begin(), bias.end());
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const auto& [token, value] = bias[i];
    if (token < 0) return invalid_argument("logit_bias names token {}, which is none", token).about({"logit_bias"});
    if (i > 0 && bias[i - 1].first == token)
      return invalid_argument("logit_bias names token {} twice", token).about({"logit_bias"});
    if (!(value >= -100.0F && value <= 100.0F))
      return invalid_argument("the logit_bias of token {} is {}; it must be at least -100 and at most 100", token,
                              value)
          .about({"logit_bias"});
  }
  return {};
}

// Turns the logits of excluded tokens into NaN, which no later step chooses.
void exclude(TokenMask allowed, std::span<float> logits) {
  constexpr std::size_t kBits = 64;
  for (std::size_t first = 0; first < logits.size(); first += kBits) {
    const std::uint64_t word = first / kBits < allowed.size() ? allowed[first / kBits] : 0;
    if (word == ~std::uint64_t{0}) continue;
    const std::size_t count = std::min(kBits, logits.size() - first);
    for (std::size_t bit = 0; bit < count; ++bit)
      if ((word >> bit & 1) == 0) logits[first + bit] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

Status validate(const SamplingOptions& options) {
  KVASIR_RETURN_IF_ERROR(check_bias(options.logit_bias));
  KVASIR_RETURN_IF_ERROR(check_range("temperature", options.temperature, 0.0F, 100.0F, true));
  KVASIR_RETURN_IF_ERROR(check_top_k(options.top_k));
  KVASIR_RETURN_IF_ERROR(check_range("top_p", options.top_p, 0.0F, 1.0F, false));
  KVASIR_RETURN_IF_ERROR(check_range("min_p", options.min_p, 0.0F, 1.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("top_n_sigma", options.top_n_sigma, 0.0F, 100.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("typical_p", options.typical_p, 0.0F, 1.0F, false));
  KVASIR_RETURN_IF_ERROR(check_range("xtc_probability", options.xtc_probability, 0.0F, 1.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("xtc_threshold", options.xtc_threshold, 0.0F, 1.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("dynatemp_range", options.dynatemp_range, 0.0F, 100.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("dynatemp_exponent", options.dynatemp_exponent, 0.0F, 10.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("repetition_penalty", options.repetition_penalty, 0.0F, 10.0F, false));
  KVASIR_RETURN_IF_ERROR(check_range("frequency_penalty", options.frequency_penalty, -10.0F, 10.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("presence_penalty", options.presence_penalty, -10.0F, 10.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("dry_multiplier", options.dry_multiplier, 0.0F, 100.0F, true));
  KVASIR_RETURN_IF_ERROR(check_range("dry_base", options.dry_base, 1.0F, 10.0F, true));
  KVASIR_RETURN_IF_ERROR(check_count("dry_allowed_length", options.dry_allowed_length, 1, kMostDryLength));
  KVASIR_RETURN_IF_ERROR(check_count("dry_window", options.dry_window, 1, kMaxPenaltyWindow));
  return check_count("penalty_window", options.penalty_window, 0, kMaxPenaltyWindow);
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), dry_(options) {
  KVASIR_CHECK(validate(options).ok());
  reseed(options.seed);
}

Result<Sampler> Sampler::from_state(const SamplerState& state) {
  if (const Status status = validate(state.options); !status.ok())
    return data_loss("the sampler's state is damaged: {}", status.message());
  Sampler sampler(state.options);
  const std::size_t most = sampler.penalises() ? static_cast<std::size_t>(state.options.penalty_window) : 0;
  if (state.recent.size() > most)
    return data_loss("the sampler's state is damaged: {} tokens count for penalties, {} at most may",
                     state.recent.size(), most);
  // The generator would never leave this state.
  if (state.random == std::array<std::uint64_t, 4>{})
    return data_loss("the sampler's state is damaged: the generator's words are all zero");
  sampler.random_ = state.random;
  if (state.dry.size() > (sampler.dry_.active() ? static_cast<std::size_t>(state.options.dry_window) : 0))
    return data_loss("the sampler's state is damaged: more tokens count for DRY than may");
  for (const TokenId token : state.recent) sampler.count(token);
  for (const TokenId token : state.dry) sampler.dry_.observe(token);
  return sampler;
}

SamplerState Sampler::state() const {
  SamplerState state{options_, random_, recent_, {dry_.tokens().begin(), dry_.tokens().end()}};
  std::rotate(state.recent.begin(), state.recent.begin() + static_cast<std::ptrdiff_t>(recent_next_),
              state.recent.end());
  return state;
}

void Sampler::reseed(std::uint64_t seed) {
  options_.seed = seed;
  for (std::uint64_t& word : random_) word = splitmix64(&seed);
}

bool Sampler::penalises() const {
  return options_.penalty_window > 0 && (options_.repetition_penalty != 1.0F || options_.frequency_penalty != 0.0F ||
                                         options_.presence_penalty != 0.0F);
}

void Sampler::observe(TokenId token, bool breaks) {
  count(token);
  dry_.observe(breaks ? kNoToken : token);
}

void Sampler::count(TokenId token) {
  if (!penalises()) return;
  if (recent_.size() < static_cast<std::size_t>(options_.penalty_window)) {
    recent_.push_back(token);
  } else {
    const auto oldest = counts_.find(recent_[recent_next_]);
    if (--oldest->second == 0) counts_.erase(oldest);
    recent_[recent_next_] = token;
    recent_next_ = (recent_next_ + 1) % recent_.size();
  }
  ++counts_[token];
}

TokenId Sampler::sample(std::span<const float> logits, TokenMask allowed) {
  KVASIR_CHECK(!logits.empty());
  logits = adjusted(logits, allowed);
  if (options_.temperature == 0.0F) return largest(logits);
  gather(logits);
  if (candidates_.empty()) return kNoToken;
  truncate(logits);
  return draw();
}

void Sampler::truncate(std::span<const float> logits) {
  if (options_.top_n_sigma > 0.0F) keep_top_n_sigma(candidates_, logits, static_cast<double>(options_.top_n_sigma));
  if (options_.typical_p < 1.0F) {
    keep_typical(candidates_, weigh(candidates_, 1), static_cast<double>(options_.typical_p));
    sorted_ = false;
  }
  if (options_.top_p < 1.0F || options_.min_p > 0.0F) {
    keep_top_p(weigh(candidates_, 1));
    keep_min_p();
  }
  // Draws only where XTC could drop a token, so that requests without it have the draws that they always had.
  if (options_.xtc_probability > 0.0F && options_.xtc_threshold <= 0.5F && candidates_.size() > 1 &&
      next_uniform() < static_cast<double>(options_.xtc_probability))
    exclude_top_choices(candidates_, weigh(candidates_, 1), static_cast<double>(options_.xtc_threshold));
}

// Returns the temperature of the draw.
double Sampler::temperature() {
  const auto temperature = static_cast<double>(options_.temperature);
  if (options_.dynatemp_range == 0.0F) return temperature;
  return dynamic_temperature(candidates_, weigh(candidates_, 1), temperature,
                             static_cast<double>(options_.dynatemp_range),
                             static_cast<double>(options_.dynatemp_exponent));
}

// Returns the logits with bias, penalties and mask; without any, the logits themselves.
std::span<const float> Sampler::adjusted(std::span<const float> logits, TokenMask allowed) {
  const auto penalties = dry_.penalties();
  if (options_.logit_bias.empty() && counts_.empty() && penalties.empty() && allowed.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  const auto in_range = [&](TokenId token) { return token >= 0 && static_cast<std::size_t>(token) < logits.size(); };
  for (const auto& [token, bias] : options_.logit_bias)
    if (in_range(token)) adjusted_[static_cast<std::size_t>(token)] += bias;
  for (const auto& [token, count] : counts_) {
    if (!in_range(token)) continue;
    float& logit = adjusted_[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    logit -= static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
  for (const auto& [token, penalty] : penalties)
    if (in_range(token)) adjusted_[static_cast<std::size_t>(token)] -= static_cast<float>(penalty);
  if (!allowed.empty()) exclude(allowed, adjusted_);
  return adjusted_;
}

// Returns the first largest token, or kNoToken if all are NaN. Separate lanes let the compiler use vectors.
TokenId Sampler::largest(std::span<const float> logits) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
  float most = *std::max_element(lanes, lanes + kLanes);
  for (; i < logits.size(); ++i) most = logits[i] > most ? logits[i] : most;
  const auto found = std::find(logits.begin(), logits.end(), most);
  return found == logits.end() ? kNoToken : static_cast<TokenId>(found - logits.begin());
}

// Collects the top-k tokens whose logit is not NaN, likeliest first; all of them, by token, if there are no more than
// k.
void Sampler::gather(std::span<const float> logits) {
  const auto k = static_cast<std::size_t>(options_.top_k);
  sorted_ = k > 0 && k < logits.size() && k <= kMostHeaped && gather_few(logits, k);
  if (sorted_) return;
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i])) candidates_.push_back({static_cast<TokenId>(i), logits[i], 0.0});
  if (k == 0 || k >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(candidates_.begin(), end, candidates_.end(), likelier);
  std::sort(candidates_.begin(), end, likelier);
  candidates_.erase(end, candidates_.end());
  sorted_ = true;
}

// Collects the top k in a heap with the least likely on top, so that most tokens cost one comparison. Returns whether
// there are more than k.
bool Sampler::gather_few(std::span<const float> logits, std::size_t k) {
  candidates_.clear();
  std::size_t i = 0;
  for (; i < logits.size() && candidates_.size() < k; ++i)
    if (!std::isnan(logits[i])) candidates_.push_back({static_cast<TokenId>(i), logits[i], 0.0});
  std::make_heap(candidates_.begin(), candidates_.end(), likelier);
  bool more = false;
  const auto offer = [&](std::size_t token) {
    more = more || !std::isnan(logits[token]);
    // A later token of the same logit is less likely.
    if (!(logits[token] > candidates_.front().logit)) return;
    std::pop_heap(candidates_.begin(), candidates_.end(), likelier);
    candidates_.back() = {static_cast<TokenId>(token), logits[token], 0.0};
    std::push_heap(candidates_.begin(), candidates_.end(), likelier);
  };
  for (; i < logits.size() && !more; ++i) offer(i);
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const float least = candidates_.front().logit;
    int above = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) above += logits[i + lane] > least ? 1 : 0;
    if (above == 0) continue;
    for (std::size_t lane = 0; lane < kLanes; ++lane) offer(i + lane);
  }
  for (; i < logits.size(); ++i) offer(i);
  if (more) std::sort_heap(candidates_.begin(), candidates_.end(), likelier);
  return more;
}

void Sampler::keep_top_p(double total) {
  if (options_.top_p >= 1.0F) return;
  const double wanted = total * static_cast<double>(options_.top_p);
  // A few tokens usually hold the mass: sort the largest 64 first, then twice as many in each further round.
  double mass = 0;
  std::size_t kept = 0;
  std::size_t ordered = sorted_ ? candidates_.size() : 0;
  while (mass < wanted && kept < candidates_.size()) {
    if (kept == ordered) {
      const std::size_t next = std::min(candidates_.size(), std::max<std::size_t>(64, 2 * ordered));
      const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(ordered);
      const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(next);
      if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), likelier);
      std::sort(begin, end, likelier);
      ordered = next;
    }
    mass += candidates_[kept++].weight;
  }
  candidates_.resize(kept);
  sorted_ = true;
}

void Sampler::keep_min_p() {
  const auto least = static_cast<double>(options_.min_p);  // the largest weight is 1
  std::erase_if(candidates_, [&](const TokenCandidate& candidate) { return candidate.weight < least; });
}

TokenId Sampler::draw() {
  const double total = weigh(candidates_, temperature());
  const double point = next_uniform() * total;
  double cumulative = 0;
  const TokenCandidate* chosen = nullptr;
  for (const TokenCandidate& candidate : candidates_) {
    if (candidate.weight == 0.0) continue;
    chosen = &candidate;  // the last candidate with weight, if rounding puts the point beyond the sum
    cumulative += candidate.weight;
    if (point < cumulative) break;
  }
  return chosen->token;
}

// Returns a number from 0 to below 1.
double Sampler::next_uniform() {
  return static_cast<double>(next_random() >> 11) * 0x1.0p-53;
}

std::uint64_t Sampler::next_random() {
  const std::uint64_t result = std::rotl(random_[1] * 5, 7) * 9;
  const std::uint64_t shifted = random_[1] << 17;
  random_[2] ^= random_[0];
  random_[3] ^= random_[1];
  random_[1] ^= random_[2];
  random_[0] ^= random_[3];
  random_[2] ^= shifted;
  random_[3] = std::rotl(random_[3], 45);
  return result;
}

}  // namespace kvasir

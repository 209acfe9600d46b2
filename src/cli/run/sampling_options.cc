#include "cli/run/sampling_options.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

template <class Number>
bool read_all(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Throws CLI::ValidationError for a text that is no "ID=BIAS".
void read_biases(const std::vector<std::string>& pairs, SamplingOptions& sampling) {
  for (const std::string& pair : pairs) {
    const std::size_t middle = std::min(pair.find('='), pair.size());
    std::int32_t token = 0;
    float bias = 0;
    if (middle == pair.size() || !read_all(std::string_view(pair).substr(0, middle), token) ||
        !read_all(std::string_view(pair).substr(middle + 1), bias))
      throw CLI::ValidationError("--logit-bias",
                                 "'" + printable(pair, 40) + "' is no token id with a bias, as 15043=-100");
    sampling.logit_bias.emplace_back(token, bias);
  }
}

}  // namespace

void add_sampling_options(CLI::App& command, SamplingOptions& sampling) {
  command.add_option("--temp", sampling.temperature, "Temperature; 0 is greedy")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Keep the k likeliest tokens; 0: all")->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Keep the likeliest tokens of this much probability")
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Drop tokens less likely than this share of the likeliest")
      ->capture_default_str();
  command.add_option("--repeat-penalty", sampling.repetition_penalty, "Penalty on tokens seen lately; 1: none")
      ->capture_default_str();
  command.add_option("--frequency-penalty", sampling.frequency_penalty, "Penalty per occurrence")
      ->capture_default_str();
  command.add_option("--presence-penalty", sampling.presence_penalty, "Penalty on any occurrence")
      ->capture_default_str();
  command.add_option("--penalty-window", sampling.penalty_window, "Tokens that count as lately")->capture_default_str();
  command
      .add_option("--top-n-sigma", sampling.top_n_sigma,
                  "Drop logits this many standard deviations below the largest; 0: none")
      ->capture_default_str();
  command
      .add_option("--typical-p", sampling.typical_p, "Keep the most typical tokens of this much probability; 1: all")
      ->capture_default_str();
  command
      .add_option("--xtc-probability", sampling.xtc_probability,
                  "How often all but the least of the likely tokens are dropped (XTC); 0: never")
      ->capture_default_str();
  command.add_option("--xtc-threshold", sampling.xtc_threshold, "Probability from which XTC takes a token as likely")
      ->capture_default_str();
  command
      .add_option("--dynatemp-range", sampling.dynatemp_range,
                  "How far the temperature moves with the entropy, up and down; 0: not")
      ->capture_default_str();
  command.add_option("--dynatemp-exponent", sampling.dynatemp_exponent, "Power of the entropy in that")
      ->capture_default_str();
  command
      .add_option("--dry", sampling.dry_multiplier,
                  "Penalty on tokens that lengthen a repetition (DRY); 0: none, 0.8: usual")
      ->capture_default_str();
  command.add_option("--dry-base", sampling.dry_base, "Growth of that penalty per repeated token")
      ->capture_default_str();
  command.add_option("--dry-length", sampling.dry_allowed_length, "Tokens that may be repeated freely")
      ->capture_default_str();
  command.add_option("--dry-window", sampling.dry_window, "Tokens that are searched for repetitions")
      ->capture_default_str();
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias", [&sampling](const std::vector<std::string>& pairs) { read_biases(pairs, sampling); },
          "Add to the logit of a token: its id, then -100 to 100, as in 15043=-100; may be repeated")
      ->type_name("ID=BIAS")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--seed", sampling.seed, "Seed of the sampler; 0 or -1: a fresh one")
      ->transform(CLI::Validator(
          [](std::string& text) {
            if (text == "-1") text = "0";
            return std::string();
          },
          ""))
      ->capture_default_str();
}

void add_ending_options(CLI::App& command, GenerateOptions& generate) {
  command.add_flag("--include-stop", generate.include_stop, "Print the string of --stop that ended the text");
  command
      .add_option("--min-tokens", generate.min_tokens, "Tokens before which neither the model nor a stop ends the text")
      ->capture_default_str();
  command
      .add_option("--stop-token-ids", generate.stop_tokens,
                  "End at these tokens, which are not printed: ids, with commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--allowed-token-ids", generate.allowed_tokens, "Draw only these tokens: ids, with commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--bad-words", generate.bad_words, "Do not write this; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
}

bool limits_tokens(const GenerateOptions& generate) {
  return generate.min_tokens > 0 || !generate.stop_tokens.empty() || !generate.allowed_tokens.empty() ||
         !generate.bad_words.empty();
}

}  // namespace kvasir::cli

#include "eval/needle.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

constexpr std::string_view kKey = "{key}";
constexpr std::string_view kValue = "{value}";

// The words used in the facts that the bundled model was trained on.
constexpr std::string_view kAdjectives[] = {
    "amber",   "silver",  "crooked", "hidden",  "golden",    "ancient",  "silent",   "scarlet", "broken",
    "frozen",  "hollow",  "wooden",  "velvet",  "iron",      "marble",   "copper",   "ivory",   "dusty",
    "crystal", "painted", "narrow",  "distant", "forgotten", "northern", "southern", "eastern", "western",
    "little",  "great",   "blue",    "green",   "white",     "black"};
constexpr std::string_view kNouns[] = {"lantern", "key",      "tower",   "garden",     "river",  "castle", "mirror",
                                       "bridge",  "harbour",  "compass", "letter",     "clock",  "violin", "temple",
                                       "window",  "cellar",   "orchard", "island",     "chapel", "forge",  "carriage",
                                       "library", "fountain", "anchor",  "lighthouse", "bell",   "crown",  "map",
                                       "door",    "statue",   "well",    "mill"};

// Random numbers that are equal on every platform, unlike those of the standard library's distributions.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t length, int trial) {
    std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                        static_cast<std::uint32_t>(length), static_cast<std::uint32_t>(trial)};
    random_.seed(mixed);
  }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

 private:
  std::mt19937_64 random_;
};

std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

int count(std::string_view text, std::string_view what) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) ++found;
  return found;
}

Status check_templates(const NeedleOptions& options) {
  if (count(options.fact, kValue) != 1)
    return invalid_argument("the fact '{}' must hold {{value}} once", options.fact).about({"fact"});
  if (!options.ask.ends_with(kValue) || count(options.ask, kValue) != 1)
    return invalid_argument("the question '{}' must hold {{value}} at its end only", options.ask).about({"ask"});
  if (options.ask.find_first_not_of(' ') == options.ask.size() - kValue.size())
    return invalid_argument("the question has nothing in front of {{value}}; give one, for example '{}'",
                            NeedleOptions().ask)
        .about({"ask"});
  if (count(options.ask, kKey) > 0 && count(options.fact, kKey) == 0)
    return invalid_argument("the question '{}' asks for a {{key}} that the fact '{}' does not name", options.ask,
                            options.fact)
        .about({"ask", "fact"});
  for (const std::string& text : {options.fact, options.ask})
    if (count(text, "{") != count(text, kKey) + count(text, kValue) || count(text, "{") != count(text, "}"))
      return invalid_argument("'{}' holds braces that are neither {{key}} nor {{value}}", text).about({"fact", "ask"});
  return {};
}

Status check_options(const NeedleOptions& options) {
  if (options.lengths.empty() || options.depths.empty())
    return invalid_argument("lengths and depths need at least one value each").about({"lengths", "depths"});
  for (const std::int64_t length : options.lengths)
    if (length < 1 || length > kMostPlannedTokens / 2)
      return invalid_argument("a length of {} is outside 1 to {} tokens", length, kMostPlannedTokens / 2)
          .about({"lengths"});
  for (const double depth : options.depths)
    if (!(depth >= 0 && depth <= 1))
      return invalid_argument("a depth of {} is outside 0 to 1", depth).about({"depths"});
  if (options.trials < 1 || options.trials > 100000)
    return invalid_argument("trials={} is outside 1 to 100000", options.trials).about({"trials"});
  return check_templates(options);
}

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// Returns the offsets of tokens that start a word or a line after the end of a sentence.
std::vector<std::size_t> sentence_begins(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  std::vector<std::size_t> begins;
  bool ended = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string bytes = tokenizer.bytes_of(tokens[i]);
    if (ended && !bytes.empty() && is_space(bytes.front())) {
      begins.push_back(i);
      ended = false;
    }
    for (const char c : bytes) {
      const bool closes = c == '"' || c == '\'' || c == ')' || (static_cast<unsigned char>(c) & 0x80) != 0;  // ”
      ended = c == '.' || c == '!' || c == '?' || (ended && closes);
    }
  }
  return begins;
}

// Encodes a line in the middle of a text. Errors: kInvalidArgument for invalid UTF-8, or if the vocabulary cannot
// express it.
Result<std::vector<TokenId>> encode_line(const Tokenizer& tokenizer, const std::string& line) {
  KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                          tokenizer.encode(line, {.add_special = false, .continues = true}));
  std::size_t bytes = 0;
  for (const TokenId token : tokens) bytes += tokenizer.bytes_of(token).size();
  if (bytes != line.size())
    return invalid_argument("the model's vocabulary cannot write '{}'; choose another fact and question", line)
        .about({"fact", "ask"});
  return tokens;
}

}  // namespace

Result<NeedlePrompts> NeedlePrompts::create(const Tokenizer& tokenizer, std::string_view filler,
                                            NeedleOptions options) {
  if (count(options.ask, kValue) == 0) options.ask += " {value}";
  KVASIR_RETURN_IF_ERROR(check_options(options));
  NeedlePrompts prompts(std::move(options));
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (vocabulary.add_bos && vocabulary.bos) prompts.begin_.push_back(*vocabulary.bos);
  KVASIR_ASSIGN_OR_RETURN(prompts.filler_, tokenizer.encode(filler, {.add_special = false}));
  prompts.sentences_ = sentence_begins(tokenizer, prompts.filler_);
  for (const std::int64_t length : prompts.options_.lengths)
    for (int trial = 0; trial < prompts.options_.trials; ++trial) {
      KVASIR_ASSIGN_OR_RETURN(Trial made, prompts.make_trial(tokenizer, length, trial));
      prompts.trials_.push_back(std::move(made));
    }
  return prompts;
}

Result<NeedlePrompts::Trial> NeedlePrompts::make_trial(const Tokenizer& tokenizer, std::int64_t length,
                                                       int number) const {
  Draw draw(options_.seed, length, number);
  // Each draw is a statement of its own: within one expression their order would be unspecified.
  const std::string_view noun = kNouns[draw.below(std::size(kNouns))];
  const std::string_view adjective = kAdjectives[draw.below(std::size(kAdjectives))];
  const std::string key = std::string(adjective) + " " + std::string(noun);
  std::string value;
  for (int i = 0; i < 5; ++i) value += static_cast<char>('0' + draw.below(10));
  const auto fill_in = [&](const std::string& text) {
    return replace_all(replace_all(text, kKey, key), kValue, value);
  };

  Trial trial;
  KVASIR_ASSIGN_OR_RETURN(trial.fact, encode_line(tokenizer, "\n" + fill_in(options_.fact) + "\n"));
  const std::string ask = "\n" + fill_in(options_.ask);
  KVASIR_ASSIGN_OR_RETURN(trial.ask, encode_line(tokenizer, ask));
  // The answer starts with the first token that contains a byte of the value.
  std::size_t bytes = 0;
  std::size_t asked = 0;
  for (; asked < trial.ask.size(); ++asked) {
    bytes += tokenizer.bytes_of(trial.ask[asked]).size();
    if (bytes > ask.size() - value.size()) break;
  }
  trial.answer.assign(trial.ask.begin() + static_cast<std::ptrdiff_t>(asked), trial.ask.end());
  trial.ask.resize(asked);
  const auto room = length - static_cast<std::int64_t>(begin_.size() + trial.fact.size() + trial.ask.size());
  if (room < 0)
    return invalid_argument("a prompt of {} has no room for the fact and the question, {}; make it longer",
                            counted(length, "token"), counted(length - room, "token"))
        .about({"lengths"});
  trial.filler_size = static_cast<std::size_t>(room);
  if (trial.filler_size > filler_.size())
    return invalid_argument(
               "the text has {}, but a prompt of {} needs {} of filler; give a longer text or smaller lengths",
               counted(std::ssize(filler_), "token"), length, room)
        .about({"lengths"});
  const std::size_t last = filler_.size() - trial.filler_size;
  const auto choices = std::ranges::upper_bound(sentences_, last) - sentences_.begin();
  const std::size_t chosen = draw.below(static_cast<std::size_t>(choices) + 1);  // + 1: the start of the text
  trial.filler_begin = chosen == 0 ? 0 : sentences_[chosen - 1];
  return trial;
}

// Returns the number of filler tokens in front of the fact.
std::size_t NeedlePrompts::nearest_sentence(const Trial& trial, double depth) const {
  const double wanted = depth * static_cast<double>(trial.filler_size);
  auto best = static_cast<std::size_t>(std::lround(wanted));
  double nearest = static_cast<double>(trial.filler_size) / 8;
  const auto consider = [&](std::size_t at) {
    const double away = std::fabs(static_cast<double>(at) - wanted);
    if (away < nearest) {
      nearest = away;
      best = at;
    }
  };
  consider(0);
  consider(trial.filler_size);
  const std::size_t end = trial.filler_begin + trial.filler_size;
  auto sentence = std::ranges::lower_bound(sentences_, trial.filler_begin + static_cast<std::size_t>(wanted));
  if (sentence != sentences_.begin()) --sentence;
  for (int i = 0; i < 2 && sentence != sentences_.end(); ++i, ++sentence)
    if (*sentence >= trial.filler_begin && *sentence <= end) consider(*sentence - trial.filler_begin);
  return best;
}

NeedlePrompt NeedlePrompts::prompt(std::size_t length, std::size_t depth, int number) const {
  KVASIR_CHECK(length < options_.lengths.size() && depth < options_.depths.size() && number >= 0 &&
               number < options_.trials);
  const Trial& trial = trials_[length * static_cast<std::size_t>(options_.trials) + static_cast<std::size_t>(number)];
  const auto filler = filler_.begin() + static_cast<std::ptrdiff_t>(trial.filler_begin);
  const auto before = static_cast<std::ptrdiff_t>(nearest_sentence(trial, options_.depths[depth]));
  NeedlePrompt made;
  made.answer = trial.answer;
  std::vector<TokenId>& to = made.prompt;
  to = begin_;
  to.insert(to.end(), filler, filler + before);
  made.fact_at = static_cast<std::int64_t>(to.size());
  to.insert(to.end(), trial.fact.begin(), trial.fact.end());
  to.insert(to.end(), filler + before, filler + static_cast<std::ptrdiff_t>(trial.filler_size));
  to.insert(to.end(), trial.ask.begin(), trial.ask.end());
  return made;
}

std::int64_t NeedlePrompts::most_answer_tokens() const {
  std::size_t most = 0;
  for (const Trial& trial : trials_) most = std::max(most, trial.answer.size());
  return static_cast<std::int64_t>(most);
}

Result<NeedleResult> evaluate_needle(const std::shared_ptr<LoadedModel>& model, const KvCacheShape& shape,
                                     const NeedlePrompts& prompts, const std::string& policy_spec, int chunk,
                                     const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_chunk(chunk));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<RetentionPolicy> policy, make_policy(policy_spec));
  const NeedleOptions& options = prompts.options();
  const std::int64_t answer = prompts.most_answer_tokens();
  std::vector<MemoryRequest> requests;
  std::int64_t all = 0;
  for (const std::int64_t length : options.lengths) {
    requests.push_back({length + answer, length, chunk, 1});
    all += (length + answer) * static_cast<std::int64_t>(options.depths.size()) * options.trials;
  }
  for (const MemoryRequest& request : requests)
    KVASIR_RETURN_IF_ERROR(check_positions(*policy, chunk, model->config.context, request.tokens));
  KVASIR_ASSIGN_OR_RETURN(const std::shared_ptr<KvCache> cache,
                          make_evaluation_cache(model, shape, model->options.kv_memory, *policy, requests));

  NeedleResult result;
  result.policy = policy->traits().spec;
  result.codec = codec_name(cache->shape().codec());
  std::int64_t before = 0;
  for (std::size_t length = 0; length < options.lengths.size(); ++length)
    for (std::size_t depth = 0; depth < options.depths.size(); ++depth) {
      NeedleCell cell{options.lengths[length], options.depths[depth], options.trials};
      int exact = 0;
      for (int trial = 0; trial < options.trials; ++trial) {
        const NeedlePrompt needle = prompts.prompt(length, depth, trial);
        SequenceRunner runner(model, cache, policy->clone());
        KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenScore> scores,
                                score_answer(runner, needle.prompt, needle.answer, chunk, [&](std::int64_t read) {
                                  return !progress || progress(before + read, all);
                                }));
        before += options.lengths[length] + answer;
        double logprob = 0;
        for (const TokenScore& score : scores) logprob += score.logprob / static_cast<double>(scores.size());
        cell.logprob += logprob / options.trials;
        if (std::ranges::all_of(scores, &TokenScore::likeliest)) ++exact;
        if (const SequenceDemotion* demotion = runner.whole().offloaded().demotion(); demotion != nullptr) {
          const SequenceDemotion::Report report = demotion->report();
          result.recalled += report.recalled;
          result.fetched += report.fetched;
          result.wait_seconds += report.seconds_waited;
          result.recall_rows += std::ssize(needle.answer);
        }
        result.kept_max = std::max(result.kept_max, runner.counters().kept_max);
      }
      cell.exact = static_cast<double>(exact) / options.trials;
      result.exact += cell.exact;
      result.logprob += cell.logprob;
      result.cells.push_back(cell);
    }
  result.exact /= static_cast<double>(result.cells.size());
  result.logprob /= static_cast<double>(result.cells.size());
  result.kv_bytes_peak = cache->budget().peak();
  return result;
}

}  // namespace kvasir

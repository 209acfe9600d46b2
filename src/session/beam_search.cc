#include "session/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "generation/log_probabilities.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

struct LiveBeam {
  std::unique_ptr<Sequence> sequence;
  std::vector<TokenId> tokens;
  double log_probability = 0;
  std::vector<float> logits;
};

// A live beam extended by one token.
struct Candidate {
  std::size_t parent = 0;
  TokenId token = 0;
  double log_probability = 0;
};

double score_of(double log_probability, std::size_t tokens, double length_penalty) {
  return log_probability / std::pow(static_cast<double>(std::max<std::size_t>(tokens, 1)), length_penalty);
}

class Search {
 public:
  Search(Step& step, const Tokenizer& tokenizer, const BeamSearchOptions& options)
      : step_(step), tokenizer_(tokenizer), options_(options) {}

  Result<std::vector<Beam>> run(std::unique_ptr<Sequence> root, std::span<const float> logits,
                                const std::function<bool(std::int64_t)>& progress) {
    capacity_ = root->cache()->budget().capacity();
    live_.push_back({std::move(root), {}, 0, {logits.begin(), logits.end()}});
    for (std::int64_t done = 0; !live_.empty(); ++done) {
      if (done == options_.max_tokens) {
        end_all(FinishReason::kLength);
      } else if (progress && !progress(done)) {
        end_all(FinishReason::kCancelled);
      } else if (std::ranges::any_of(live_, [](const LiveBeam& b) { return context_left(*b.sequence) < 1; })) {
        end_all(FinishReason::kContext);
      } else {
        KVASIR_RETURN_IF_ERROR(extend());
      }
    }
    return std::move(finished_);
  }

 private:
  // Keeps ended beams in order of score; of equal scores the first found stays first.
  void finish(Beam beam) {
    beam.score = score_of(beam.log_probability, beam.tokens.size() + (beam.finish_reason == FinishReason::kEnd ? 1 : 0),
                          options_.length_penalty);
    const auto place = std::ranges::find_if(finished_, [&](const Beam& other) { return other.score < beam.score; });
    finished_.insert(place, std::move(beam));
    if (finished_.size() > static_cast<std::size_t>(options_.width)) finished_.pop_back();
  }

  void end_all(FinishReason reason) {
    for (LiveBeam& beam : live_) finish({std::move(beam.tokens), beam.log_probability, 0, reason});
    live_.clear();
  }

  // Returns whether no live beam can still become one of the best: probabilities only fall, lengths only grow.
  bool hopeless(double best_log_probability, std::size_t tokens) const {
    if (finished_.size() < static_cast<std::size_t>(options_.width)) return false;
    const double longest =
        options_.length_penalty > 0 ? static_cast<double>(options_.max_tokens) : static_cast<double>(tokens);
    const double most = best_log_probability / std::pow(std::max(longest, 1.0), options_.length_penalty);
    return most <= finished_.back().score;
  }

  Status extend() {
    std::vector<Candidate> candidates;
    for (std::size_t b = 0; b < live_.size(); ++b)
      for (const TokenLogProbability& next : top_log_probabilities(live_[b].logits, 2 * options_.width))
        candidates.push_back({b, next.token, live_[b].log_probability + next.log_probability});
    if (candidates.empty()) return data_loss("the model's output is NaN; the file is damaged");
    std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::log_probability);
    std::vector<Candidate> chosen;
    for (std::size_t c = 0; c < candidates.size() && chosen.size() < static_cast<std::size_t>(options_.width); ++c) {
      const Candidate& candidate = candidates[c];
      if (!options_.ignore_eos && tokenizer_.is_end(candidate.token)) {
        // As published: an end counts if it is among the best `width` candidates.
        if (c < static_cast<std::size_t>(options_.width))
          finish({live_[candidate.parent].tokens, candidate.log_probability, 0, FinishReason::kEnd});
      } else {
        chosen.push_back(candidate);
      }
    }
    if (chosen.empty() || hopeless(chosen.front().log_probability, live_.front().tokens.size() + 1)) {
      live_.clear();
      return {};
    }
    return advance(chosen);
  }

  // Gives each chosen candidate its own sequence and runs their tokens.
  Status advance(std::span<const Candidate> chosen) {
    std::vector<LiveBeam> next(chosen.size());
    std::vector<std::size_t> uses(live_.size(), 0);
    for (const Candidate& candidate : chosen) ++uses[candidate.parent];
    // Beams without a successor free their pages before others are copied.
    for (std::size_t b = 0; b < live_.size(); ++b)
      if (uses[b] == 0) live_[b].sequence.reset();
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      LiveBeam& parent = live_[chosen[i].parent];
      next[i].tokens = parent.tokens;
      next[i].log_probability = chosen[i].log_probability;
      if (--uses[chosen[i].parent] == 0) {
        next[i].sequence = std::move(parent.sequence);
      } else {
        auto copy = parent.sequence->fork();
        if (!copy.ok()) return out_of_memory();
        next[i].sequence = std::move(*copy);
      }
      tokens.push_back(chosen[i].token);
    }
    std::vector<StepRequest> requests;
    for (std::size_t i = 0; i < next.size(); ++i)
      requests.push_back({next[i].sequence.get(), {{&tokens[i], 1}, Source::kGenerated}});
    const Step::Plan plan = step_.plan(requests);
    KVASIR_RETURN_IF_ERROR(plan.status);
    if (!plan.fits) return out_of_memory();
    std::vector<StepResult> results(requests.size());
    KVASIR_RETURN_IF_ERROR(step_.run(plan, requests, results));
    for (std::size_t i = 0; i < next.size(); ++i) {
      KVASIR_RETURN_IF_ERROR(results[i].status);
      next[i].tokens.push_back(tokens[i]);
      next[i].logits.assign(results[i].logits.begin(), results[i].logits.end());
    }
    live_ = std::move(next);
    return {};
  }

  // Ends the beams as they were before the token that did not fit. A search without a first token has no result.
  Status out_of_memory() {
    if (live_.front().tokens.empty())
      return exhausted(
                 "the KV memory of {} bytes has no room for a first token of {} {}; give it more, or search with fewer "
                 "beams",
                 capacity_, options_.width, options_.width == 1 ? "beam" : "beams")
          .about({"kv_memory", "beams"});
    end_all(FinishReason::kKvMemory);
    return {};
  }

  Step& step_;
  const Tokenizer& tokenizer_;
  const BeamSearchOptions& options_;
  std::uint64_t capacity_ = 0;  // bytes of the cache
  std::vector<LiveBeam> live_;
  std::vector<Beam> finished_;
};

}  // namespace

Status validate(const BeamSearchOptions& options) {
  if (options.width < 1 || options.width > kMostSamples)
    return invalid_argument("beams={} is outside 1 to {}", options.width, kMostSamples).about({"beams"});
  if (!(options.length_penalty >= -10 && options.length_penalty <= 10))
    return invalid_argument("length_penalty={} is outside -10 to 10", options.length_penalty).about({"length_penalty"});
  if (options.max_tokens < 1 || options.max_tokens > (std::int64_t{1} << 30))
    return invalid_argument("a beam search needs a number of tokens, 1 to 2^30; {} is none", options.max_tokens)
        .about({"max_tokens"});
  return {};
}

Result<std::vector<Beam>> beam_search(Step& step, std::unique_ptr<Sequence> root, std::span<const float> logits,
                                      const Tokenizer& tokenizer, const BeamSearchOptions& options,
                                      const std::function<bool(std::int64_t)>& progress) {
  KVASIR_RETURN_IF_ERROR(validate(options));
  return Search(step, tokenizer, options).run(std::move(root), logits, progress);
}

}  // namespace kvasir

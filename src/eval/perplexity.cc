#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "eval/text_reader.h"
#include "quality/divergence.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

PositionBins positions_of(std::int64_t tokens, const PerplexityOptions& options) {
  const std::int64_t end = options.window > 0 ? options.window : std::max(tokens, options.bins_over);
  return {first_scored_row(options) + 1, end, options.bins};
}

Result<RecomputeSpec> recompute_spec(const PolicyOptions& given, const PerplexityOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  RecomputeSpec made;
  KVASIR_ASSIGN_OR_RETURN(made.size, given.get_int("size", 1, kMost));
  KVASIR_ASSIGN_OR_RETURN(made.stride, given.get_int("stride", 1, kMost));
  if (options.window > 0)
    return invalid_argument("policy 'recompute' reads one stream; omit the windows").about({"window"});
  made.first_row = first_scored_row(options);
  return made;
}

Status check_policy(const std::string& policy, const PerplexityOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(policy));
  return spec.evaluation_only() ? recompute_spec(spec.parts.front(), options).status() : make_policy(spec).status();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

// Computes the figures of a result from its sums.
void finish(PerplexityResult& result) {
  const PerplexitySums& sums = result.sums;
  const auto n = static_cast<double>(sums.tokens);
  result.tokens = sums.tokens;
  result.nll = sums.nll / n;
  result.ppl = std::exp(result.nll);
  const double variance = std::max(0.0, sums.nll_squares / n - result.nll * result.nll);
  result.ppl_error = n > 1 ? result.ppl * std::sqrt(variance / (n - 1)) : 0;
  result.kept_mean = sums.kept / n;
  result.dead_share = sums.dead_share / n;
  result.encodings_mean = sums.encoded > 0 ? sums.encodings / static_cast<double>(sums.encoded) : 0;
  result.full.reset();
  if (!sums.klds.empty()) {
    double kld = 0;
    for (const double of_token : sums.klds) kld += of_token;
    result.full = FullComparison{kld / n, quantile(sums.klds, 0.99), static_cast<double>(sums.agreed) / n};
  }
  result.timed = static_cast<std::int64_t>(sums.pass_ms.size());
  result.tpot_ms = quantile(sums.pass_ms, 0.5);
  result.tpot_p10_ms = quantile(sums.pass_ms, 0.1);
  result.tpot_p90_ms = quantile(sums.pass_ms, 0.9);
  result.forward_ms = sums.times.forward * 1e3 / static_cast<double>(sums.timed_tokens);
  result.cache_op_ms = sums.times.cache * 1e3 / static_cast<double>(sums.timed_tokens);
  result.curve.clear();
  for (const PerplexitySums::Bin& bin : sums.bins) {
    if (bin.tokens == 0) continue;
    const auto m = static_cast<double>(bin.tokens);
    result.curve.push_back({bin.position / m, bin.tokens, bin.nll / m, bin.kld / m, bin.kept / m});
  }
}

// A policy with a codec.
struct Run {
  std::string policy;
  KvCacheShape shape;
};

// The full cache's logits of a text's rows that some policy has yet to be compared with.
class KeptRows {
 public:
  explicit KeptRows(int vocabulary) : vocabulary_(static_cast<std::size_t>(vocabulary)) {}

  void append(const ReadPass& pass) {
    if (logits_.empty()) first_ = pass.first;
    logits_.insert(logits_.end(), pass.logits.begin(), pass.logits.end());
  }
  void drop_before(std::int64_t row) {
    if (row <= first_) return;
    const auto gone = std::min(logits_.size(), static_cast<std::size_t>(row - first_) * vocabulary_);
    logits_.erase(logits_.begin(), logits_.begin() + static_cast<std::ptrdiff_t>(gone));
    first_ += static_cast<std::int64_t>(gone / vocabulary_);
  }
  std::span<const float> row(std::int64_t row) const {
    const std::size_t at = static_cast<std::size_t>(row - first_) * vocabulary_;
    KVASIR_CHECK(row >= first_ && at + vocabulary_ <= logits_.size());
    return std::span(logits_).subspan(at, vocabulary_);
  }

 private:
  std::size_t vocabulary_;
  std::int64_t first_ = 0;
  std::vector<float> logits_;
};

// Policies that read the same texts in parallel: the least advanced runs its next pass. Each reads the windows of a
// group together.
class SideBySide {
 public:
  SideBySide(const std::shared_ptr<LoadedModel>& model, std::span<const std::vector<TokenId>> texts,
             const PerplexityOptions& options, Progress progress)
      : model_(model), texts_(texts), options_(options), progress_(std::move(progress)) {}

  // Returns the results of each run on each text: [texts][runs].
  Result<std::vector<std::vector<PerplexityResult>>> run(std::span<const Run> runs) {
    list_windows();
    KVASIR_RETURN_IF_ERROR(make_tracks(runs));
    for (std::size_t first = 0; first < windows_.size(); first += group()) {
      const std::size_t count = std::min(group(), windows_.size() - first);
      KVASIR_RETURN_IF_ERROR(read(std::span(windows_).subspan(first, count)));
    }
    std::vector<std::vector<PerplexityResult>> results(texts_.size());
    for (Track& track : tracks_) {
      if (!track.reported) continue;
      for (std::size_t text = 0; text < texts_.size(); ++text) {
        finish(track.results[text]);
        results[text].push_back(std::move(track.results[text]));
      }
    }
    return results;
  }

 private:
  // A part of a text that is read on its own.
  struct Window {
    std::size_t text = 0;
    std::int64_t begin = 0;
    std::int64_t tokens = 0;
  };

  struct Track {
    std::unique_ptr<RetentionPolicy> policy;
    std::optional<RecomputeSpec> recompute;
    std::shared_ptr<KvCache> cache;
    std::unique_ptr<TextReader> reader;
    int chunk = 0;
    bool reported = true;
    std::vector<PerplexityResult> results;  // [texts]
    std::vector<PerplexitySums> sums;       // [windows of the group], so that scored tokens stay in order of windows
  };

  std::size_t group() const { return std::min(static_cast<std::size_t>(options_.parallel), windows_.size()); }

  void list_windows() {
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const std::int64_t size = std::ssize(texts_[i]);
      const std::int64_t window = options_.window > 0 ? options_.window : size;
      for (std::int64_t begin = 0; begin + window <= size; begin += window) windows_.push_back({i, begin, window});
    }
    for (const Window& window : windows_) {
      total_ += window.tokens;
      longest_ = std::max(longest_, window.tokens);
    }
  }

  std::vector<TokenId> tokens_of(const Window& window) const {
    const auto begin = texts_[window.text].begin() + window.begin;
    std::vector<TokenId> tokens(begin, begin + window.tokens);
    const Vocabulary& vocabulary = model_->tokenizer->vocabulary();
    if (options_.window > 0 && vocabulary.bos && vocabulary.add_bos) tokens.front() = *vocabulary.bos;
    return tokens;
  }

  Status make_tracks(std::span<const Run> runs) {
    const std::uint64_t budget = model_->options.kv_memory;
    if (budget > 0 && group() > 1)
      return invalid_argument("a KV memory of {} is for one window at a time; read them one by one",
                              counted(static_cast<std::int64_t>(budget), "byte"))
          .about({"parallel", "kv_memory"});
    tracks_.resize(runs.size() + 1);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      KVASIR_RETURN_IF_ERROR(make_track(tracks_[i], runs[i].policy, runs[i].shape, budget));
      if (options_.compare_full && full_ == nullptr && runs[i].shape.codec() == KvCodec{} &&
          tracks_[i].results.front().policy == "full")
        full_ = &tracks_[i];  // its own reference: no second reading is needed
    }
    if (options_.compare_full && full_ == nullptr) {
      full_ = &tracks_.back();
      full_->reported = false;
      KVASIR_RETURN_IF_ERROR(make_track(*full_, "full", model_->kv_shape.with(KvCodec{}), 0));
    } else {
      tracks_.pop_back();
    }
    std::uint64_t bytes = 0;
    for (const Track& track : tracks_) bytes += track.cache->budget().capacity();
    if ((tracks_.size() > 1 || group() > 1) && bytes > memory_bound())
      return exhausted(
                 "the caches of {} runs side by side take {} bytes, more than this machine has left ({}); compare "
                 "fewer at a time, or give each less",
                 tracks_.size() * group(), bytes, memory_bound())
          .about({"policies", "kv_memory"});
    return {};
  }

  Status make_track(Track& track, const std::string& policy, const KvCacheShape& shape, std::uint64_t budget) {
    std::int64_t tokens = longest_;
    KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(policy));
    PerplexityResult result;
    if (spec.evaluation_only()) {
      KVASIR_ASSIGN_OR_RETURN(track.recompute, recompute_spec(spec.parts.front(), options_));
      KVASIR_ASSIGN_OR_RETURN(track.policy, make_policy(PolicySpec::named("full")));
      tokens = std::min(tokens, track.recompute->size);
      result.policy = fmt::format("recompute:size={}", track.recompute->size);
      if (track.recompute->stride > 1) result.policy += fmt::format(",stride={}", track.recompute->stride);
      if (group() > 1)
        return invalid_argument("policy 'recompute' reads one text at a time").about({"policies", "parallel"});
    } else {
      KVASIR_ASSIGN_OR_RETURN(track.policy, make_policy(spec));
      KVASIR_RETURN_IF_ERROR(check_positions(*track.policy, options_.chunk, model_->config.context, tokens));
      result.policy = track.policy->traits().spec;
    }
    track.chunk = chunk_for(*track.policy, tokens);
    const std::int64_t prompt = options_.prefill > 0 ? std::min(options_.prefill, tokens) : tokens;
    const MemoryRequest request{tokens, prompt, track.chunk, 1};
    KVASIR_ASSIGN_OR_RETURN(track.cache, make_evaluation_cache(model_, shape, budget, *track.policy, {&request, 1},
                                                               static_cast<int>(group())));
    result.codec = codec_name(track.cache->shape().codec());
    result.sums.keeps_nlls = options_.keep_nlls;
    track.results.assign(texts_.size(), result);
    for (std::size_t i = 0; i < texts_.size(); ++i)
      track.results[i].sums.positions = positions_of(std::ssize(texts_[i]), options_);
    return {};
  }

  // A policy that drops while it reads runs in short chunks if the chunk is free and changes no bit. Its memory is then
  // that of the tokens kept, not of the whole text.
  int chunk_for(const RetentionPolicy& policy, std::int64_t tokens) const {
    constexpr int kShort = 32;
    const PolicyTraits& traits = policy.traits();
    const bool is_free =
        options_.chunk == 0 && traits.chunk == 0 && traits.realign != Realign::kRotate && !traits.demotion;
    return is_free && policy.bound().value_or(tokens) < tokens ? kShort : options_.chunk;
  }

  // Reads and scores a group of windows.
  Status read(std::span<const Window> windows) {
    std::vector<std::vector<TokenId>> parts;
    for (const Window& window : windows) parts.push_back(tokens_of(window));
    full_rows_.assign(windows.size(), KeptRows(model_->config.vocabulary));
    for (Track& track : tracks_) {
      track.sums.clear();
      for (const Window& window : windows) {
        const PerplexitySums& all = track.results[window.text].sums;
        track.sums.push_back({.keeps_nlls = all.keeps_nlls, .positions = all.positions});
      }
      track.reader = track.recompute ? make_recompute_reader(model_, track.cache, *track.recompute, parts.front())
                                     : make_cached_reader(model_, track.cache, *track.policy, parts,
                                                          {track.chunk, options_.prefill, first_scored_row(options_)});
    }
    const std::int64_t before = done_;
    while (Track* track = least_advanced()) {
      if (full_ != nullptr && full_ != track)
        while (!full_->reader->done() && full_->reader->next_row() < track->reader->pass_limit())
          KVASIR_RETURN_IF_ERROR(pass(*full_, parts));
      KVASIR_RETURN_IF_ERROR(pass(*track, parts));
      const Track* behind = least_advanced();
      const std::int64_t row = behind != nullptr ? behind->reader->next_row() : longest_;
      done_ = before;
      for (std::size_t i = 0; i < windows.size(); ++i) {
        full_rows_[i].drop_before(row);
        done_ += std::min(row, windows[i].tokens);
      }
      if (progress_ && !progress_(done_, total_)) return Status(StatusCode::kCancelled, "stopped");
    }
    for (Track& track : tracks_) {
      for (std::size_t i = 0; i < windows.size(); ++i) {
        PerplexityResult& result = track.results[windows[i].text];
        result.sums.add(track.sums[i]);
        add(track.reader->figures(i), result);
      }
      track.reader.reset();
    }
    return {};
  }

  static void add(const ReadFigures& figures, PerplexityResult& result) {
    result.sums.times += figures.times;
    result.sums.timed_tokens += figures.tokens_timed;
    result.sums.encodings += static_cast<double>(figures.encodings.sum);
    result.sums.encoded += static_cast<std::int64_t>(figures.encodings.tokens);
    result.encodings_max = std::max(result.encodings_max, figures.encodings.most);
    result.kept_max = std::max(result.kept_max, figures.kept_max);
    result.seen_least = std::min(result.seen_least, figures.seen_least);
    result.kv_bytes_peak = std::max(result.kv_bytes_peak, figures.bytes_peak);
  }

  // Returns the least advanced track whose result was requested; nullptr if all are done.
  Track* least_advanced() {
    Track* least = nullptr;
    for (Track& track : tracks_)
      if (track.reported && !track.reader->done() &&
          (least == nullptr || track.reader->next_row() < least->reader->next_row()))
        least = &track;
    return least;
  }

  Status pass(Track& track, std::span<const std::vector<TokenId>> parts) {
    KVASIR_ASSIGN_OR_RETURN(const std::span<const ReadPass> passes, track.reader->read_pass());
    for (const ReadPass& pass : passes) {
      if (&track == full_) full_rows_[pass.text].append(pass);
      if (track.reported) score(pass, parts[pass.text], track.sums[pass.text]);
    }
    return {};
  }

  void score(const ReadPass& pass, std::span<const TokenId> tokens, PerplexitySums& sums) const {
    if (pass.timed) sums.pass_ms.push_back(pass.ms_per_token);
    const auto vocabulary = static_cast<std::size_t>(model_->config.vocabulary);
    for (int r = 0; r < pass.rows; ++r) {
      const std::int64_t row = pass.first + r;
      if (row < first_scored_row(options_) || row + 1 >= std::ssize(tokens)) continue;
      const auto logits = pass.logits.subspan(static_cast<std::size_t>(r) * vocabulary, vocabulary);
      ScoredToken token{row + 1, -score_token(logits, tokens[static_cast<std::size_t>(row + 1)]).logprob,
                        pass.kept[static_cast<std::size_t>(r)], pass.dead_share};
      if (full_ != nullptr) {
        const LogitDivergence divergence = compare_logits(full_rows_[pass.text].row(row), logits);
        token.kld = divergence.kld;
        token.top1_agree = divergence.top1_agree;
      }
      sums.add(token);
    }
  }

  const std::shared_ptr<LoadedModel>& model_;
  std::span<const std::vector<TokenId>> texts_;
  const PerplexityOptions& options_;
  Progress progress_;
  std::vector<Window> windows_;
  std::int64_t longest_ = 0;  // tokens of a window, at most
  std::vector<Track> tracks_;
  Track* full_ = nullptr;            // the reference of the comparison
  std::vector<KeptRows> full_rows_;  // [windows of the group]
  std::int64_t done_ = 0;            // tokens that all tracks have read
  std::int64_t total_ = 0;
};

}  // namespace

std::int64_t first_scored_row(const PerplexityOptions& options) {
  const std::int64_t first = options.window == 0     ? options.first_scored
                             : options.whole_windows ? 0
                                                     : options.window / 2;
  // The prompt's last row comes before the policy drops anything.
  return std::max(first, options.prefill);
}

Status check_perplexity(std::int64_t tokens, const PerplexityOptions& options) {
  if (options.policies.empty()) return invalid_argument("there is no policy to evaluate").about({"policies"});
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
  if (options.parallel < 1 || options.parallel > kMostParallel)
    return invalid_argument("parallel={} is outside 1 to {} windows", options.parallel, kMostParallel)
        .about({"parallel"});
  if (options.window != 0 && (options.window < 4 || options.window > std::int64_t{1} << 24))
    return invalid_argument("window={} is outside 4 to 2^24 tokens (0: one stream)", options.window).about({"window"});
  for (const std::string& policy : options.policies) KVASIR_RETURN_IF_ERROR(check_policy(policy, options));
  for (const std::string& type : options.kv_types) KVASIR_RETURN_IF_ERROR(check_kv_type(type));
  const std::int64_t needed = options.window > 0 ? options.window : 2;
  if (tokens < needed)
    return invalid_argument("the text has {}, at least {} are needed; give a longer text", counted(tokens, "token"),
                            needed);
  if (options.window == 0 && options.whole_windows)
    return invalid_argument("one stream has no windows to score in whole; give their length").about({"window"});
  if (options.window > 0 && options.first_scored > 0)
    return invalid_argument("only a single stream can start with unscored tokens; omit them, or the windows")
        .about({"first_scored", "window"});
  const std::int64_t length = options.window > 0 ? options.window : tokens;
  if (options.prefill < 0 || options.prefill >= length - 1)
    return invalid_argument("prefill={} must be from 0 to {}, so that there is a token behind the prompt to score",
                            options.prefill, length - 2)
        .about({"prefill"});
  if (options.first_scored < 0 || options.first_scored >= tokens - 1)
    return invalid_argument("leaving {} unscored leaves nothing of {} to score; leave fewer out",
                            counted(options.first_scored, "token"), tokens)
        .about({"first_scored"});
  const PositionBins positions = positions_of(tokens, options);
  const std::int64_t most = std::min(kMostBins, positions.end - positions.begin);
  if (options.bins < 0 || options.bins > most)
    return invalid_argument("bins={} is outside 0 to {}: no more than the positions that are scored, or than {}",
                            options.bins, most, kMostBins)
        .about({"bins"});
  return {};
}

Result<std::vector<std::vector<PerplexityResult>>> evaluate_perplexities(const std::shared_ptr<LoadedModel>& model,
                                                                         std::span<const std::vector<TokenId>> texts,
                                                                         const PerplexityOptions& options,
                                                                         const Progress& progress) {
  for (const std::vector<TokenId>& text : texts) KVASIR_RETURN_IF_ERROR(check_perplexity(std::ssize(text), options));
  std::vector<Run> runs;
  for (const std::string& policy : options.policies) {
    if (options.kv_types.empty()) runs.push_back({policy, model->kv_shape});
    for (const std::string& type : options.kv_types) {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape,
                              kv_cache_shape(model->config, type, model->kv_shape.page.slots));
      runs.push_back({policy, shape});
    }
  }
  if (options.compare_full) return SideBySide(model, texts, options, progress).run(runs);
  std::vector<std::vector<PerplexityResult>> results(texts.size());
  const auto count = static_cast<std::int64_t>(runs.size());
  for (std::int64_t before = 0; before < count; ++before) {
    const auto of_all = [&](std::int64_t done, std::int64_t total) {
      return !progress || progress(before * total + done, count * total);
    };
    KVASIR_ASSIGN_OR_RETURN(
        std::vector<std::vector<PerplexityResult>> one,
        SideBySide(model, texts, options, of_all).run({&runs[static_cast<std::size_t>(before)], 1}));
    for (std::size_t text = 0; text < texts.size(); ++text) results[text].push_back(std::move(one[text].front()));
  }
  return results;
}

Result<std::vector<PerplexityResult>> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                                          std::span<const TokenId> tokens,
                                                          const PerplexityOptions& options, const Progress& progress) {
  const std::vector<TokenId> text(tokens.begin(), tokens.end());
  KVASIR_ASSIGN_OR_RETURN(auto results, evaluate_perplexities(model, {&text, 1}, options, progress));
  return std::move(results.front());
}

std::optional<NllDifference> nll_difference(const PerplexityResult& run, const PerplexityResult& reference) {
  const std::vector<double>&a = run.sums.nlls, &b = reference.sums.nlls;
  if (a.empty() || a.size() != b.size()) return {};
  const auto n = static_cast<double>(a.size());
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] - b[i];
  const double mean = sum / n;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean);
  return NllDifference{mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : 0};
}

PerplexityResult pool_perplexity(std::span<const PerplexityResult> results) {
  KVASIR_CHECK(!results.empty());
  PerplexityResult pooled = results.front();
  for (const PerplexityResult& result : results.subspan(1)) {
    KVASIR_CHECK(result.policy == pooled.policy && result.codec == pooled.codec);
    pooled.sums.add(result.sums);
    pooled.kv_bytes_peak = std::max(pooled.kv_bytes_peak, result.kv_bytes_peak);
    pooled.encodings_max = std::max(pooled.encodings_max, result.encodings_max);
    pooled.kept_max = std::max(pooled.kept_max, result.kept_max);
    pooled.seen_least = std::min(pooled.seen_least, result.seen_least);
  }
  finish(pooled);
  return pooled;
}

}  // namespace kvasir

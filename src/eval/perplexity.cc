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

// Returns the first scored row of a stream or window.
std::int64_t first_row(const PerplexityOptions& options) {
  const std::int64_t first = options.window == 0     ? options.first_scored
                             : options.whole_windows ? 0
                                                     : options.window / 2;
  // The prompt's last row comes before the policy drops anything.
  return std::max(first, options.prefill);
}

PositionBins positions_of(std::int64_t tokens, const PerplexityOptions& options) {
  const std::int64_t end = options.window > 0 ? options.window : std::max(tokens, options.bins_over);
  return {first_row(options) + 1, end, options.bins};
}

Result<RecomputeSpec> recompute_spec(const PolicyOptions& given, const PerplexityOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  RecomputeSpec made;
  KVASIR_ASSIGN_OR_RETURN(made.size, given.get_int("size", 1, kMost));
  KVASIR_ASSIGN_OR_RETURN(made.stride, given.get_int("stride", 1, kMost));
  if (options.window > 0)
    return invalid_argument("policy 'recompute' reads one stream; omit the windows").about({"window"});
  made.first_row = first_row(options);
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

// The full cache's logits of the rows that some policy has yet to be compared with.
class KeptRows {
 public:
  explicit KeptRows(int vocabulary) : vocabulary_(static_cast<std::size_t>(vocabulary)) {}

  void clear() {
    logits_.clear();
    first_ = 0;
  }
  void append(const ReadPass& pass) { logits_.insert(logits_.end(), pass.logits.begin(), pass.logits.end()); }
  void drop_before(std::int64_t row) {
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

// Policies that read the same text in parallel: the least advanced runs its next pass.
class SideBySide {
 public:
  SideBySide(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> tokens,
             const PerplexityOptions& options, Progress progress)
      : model_(model),
        tokens_(tokens),
        options_(options),
        progress_(std::move(progress)),
        full_rows_(model->config.vocabulary) {}

  Result<std::vector<PerplexityResult>> run(std::span<const Run> runs) {
    KVASIR_RETURN_IF_ERROR(make_tracks(runs));
    const auto total = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t window = options_.window > 0 ? options_.window : total;
    const Vocabulary& vocabulary = model_->tokenizer->vocabulary();
    total_ = total / window * window;
    std::vector<TokenId> part;
    for (before_ = 0; before_ + window <= total; before_ += window) {
      part.assign(tokens_.begin() + before_, tokens_.begin() + before_ + window);
      if (options_.window > 0 && vocabulary.bos && vocabulary.add_bos) part.front() = *vocabulary.bos;
      KVASIR_RETURN_IF_ERROR(read(part));
    }
    std::vector<PerplexityResult> results;
    for (Track& track : tracks_) {
      if (!track.reported) continue;
      track.result.kv_bytes_peak = track.cache->budget().peak();
      finish(track.result);
      results.push_back(std::move(track.result));
    }
    return results;
  }

 private:
  struct Track {
    std::unique_ptr<RetentionPolicy> policy;
    std::optional<RecomputeSpec> recompute;
    std::shared_ptr<KvCache> cache;
    std::unique_ptr<TextReader> reader;
    int chunk = 0;
    bool reported = true;
    PerplexityResult result;
  };

  Status make_tracks(std::span<const Run> runs) {
    const std::uint64_t budget = model_->options.kv_memory;
    tracks_.resize(runs.size() + 1);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      KVASIR_RETURN_IF_ERROR(make_track(tracks_[i], runs[i].policy, runs[i].shape, budget));
      if (options_.compare_full && full_ == nullptr && runs[i].shape.codec() == KvCodec{} &&
          tracks_[i].result.policy == "full")
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
    if (tracks_.size() > 1 && bytes > memory_bound())
      return exhausted(
                 "the caches of {} runs side by side take {} bytes, more than this machine has left ({}); compare "
                 "fewer at a time, or give each less",
                 tracks_.size(), bytes, memory_bound())
          .about({"policies", "kv_memory"});
    return {};
  }

  Status make_track(Track& track, const std::string& policy, const KvCacheShape& shape, std::uint64_t budget) {
    std::int64_t tokens = options_.window > 0 ? options_.window : static_cast<std::int64_t>(tokens_.size());
    KVASIR_ASSIGN_OR_RETURN(const PolicySpec spec, PolicySpec::parse(policy));
    if (spec.evaluation_only()) {
      KVASIR_ASSIGN_OR_RETURN(track.recompute, recompute_spec(spec.parts.front(), options_));
      KVASIR_ASSIGN_OR_RETURN(track.policy, make_policy(PolicySpec::named("full")));
      tokens = std::min(tokens, track.recompute->size);
      track.result.policy = fmt::format("recompute:size={}", track.recompute->size);
      if (track.recompute->stride > 1) track.result.policy += fmt::format(",stride={}", track.recompute->stride);
    } else {
      KVASIR_ASSIGN_OR_RETURN(track.policy, make_policy(spec));
      KVASIR_RETURN_IF_ERROR(check_positions(*track.policy, options_.chunk, model_->config.context, tokens));
      track.result.policy = track.policy->traits().spec;
    }
    track.chunk = chunk_for(*track.policy, tokens);
    track.result.sums.keeps_nlls = options_.keep_nlls;
    track.result.sums.positions = positions_of(static_cast<std::int64_t>(tokens_.size()), options_);
    const std::int64_t prompt = options_.prefill > 0 ? std::min(options_.prefill, tokens) : tokens;
    const MemoryRequest request{tokens, prompt, track.chunk, 1};
    KVASIR_ASSIGN_OR_RETURN(track.cache, make_evaluation_cache(model_, shape, budget, *track.policy, {&request, 1}));
    track.result.codec = codec_name(track.cache->shape().codec());
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

  // Reads and scores one stream or window.
  Status read(std::span<const TokenId> part) {
    full_rows_.clear();
    for (Track& track : tracks_)
      track.reader = track.recompute
                         ? make_recompute_reader(model_, track.cache, *track.recompute, part)
                         : make_cached_reader(model_, track.cache, *track.policy, part, track.chunk, options_.prefill);
    while (Track* track = least_advanced()) {
      if (full_ != nullptr && full_ != track)
        while (full_->reader->next_row() < track->reader->pass_limit()) KVASIR_RETURN_IF_ERROR(pass(*full_, part));
      KVASIR_RETURN_IF_ERROR(pass(*track, part));
      const Track* behind = least_advanced();
      const auto size = static_cast<std::int64_t>(part.size());
      const std::int64_t done = behind != nullptr ? std::min(behind->reader->next_row(), size) : size;
      if (full_ != nullptr) full_rows_.drop_before(done);
      if (progress_ && !progress_(before_ + done, total_)) return Status(StatusCode::kCancelled, "stopped");
    }
    for (Track& track : tracks_) {
      track.result.sums.times += track.reader->times();
      track.result.sums.timed_tokens += track.reader->tokens_timed();
      const TableColumns::Encodings encodings = track.reader->encodings();
      track.result.sums.encodings += static_cast<double>(encodings.sum);
      track.result.sums.encoded += static_cast<std::int64_t>(encodings.tokens);
      track.result.encodings_max = std::max(track.result.encodings_max, encodings.most);
      track.result.kept_max = std::max(track.result.kept_max, track.reader->kept_max());
      track.result.seen_least = std::min(track.result.seen_least, track.reader->seen_least());
      track.reader.reset();
    }
    return {};
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

  Status pass(Track& track, std::span<const TokenId> part) {
    KVASIR_ASSIGN_OR_RETURN(const ReadPass pass, track.reader->read_pass());
    if (&track == full_) full_rows_.append(pass);
    if (!track.reported) return {};
    PerplexitySums& sums = track.result.sums;
    sums.pass_ms.push_back(pass.ms_per_token);
    const auto size = static_cast<std::int64_t>(part.size());
    const auto vocabulary = static_cast<std::size_t>(model_->config.vocabulary);
    for (int r = 0; r < pass.rows; ++r) {
      const std::int64_t row = pass.first + r;
      if (row < first_row(options_) || row + 1 >= size) continue;
      const auto logits = pass.logits.subspan(static_cast<std::size_t>(r) * vocabulary, vocabulary);
      ScoredToken token{row + 1, -score_token(logits, part[static_cast<std::size_t>(row + 1)]).logprob, pass.kept,
                        pass.dead_share};
      if (full_ != nullptr) {
        const LogitDivergence divergence = compare_logits(full_rows_.row(row), logits);
        token.kld = divergence.kld;
        token.top1_agree = divergence.top1_agree;
      }
      sums.add(token);
    }
    return {};
  }

  const std::shared_ptr<LoadedModel>& model_;
  std::span<const TokenId> tokens_;
  const PerplexityOptions& options_;
  Progress progress_;
  std::vector<Track> tracks_;
  Track* full_ = nullptr;  // the reference of the comparison
  KeptRows full_rows_;
  std::int64_t before_ = 0;  // tokens of the finished windows
  std::int64_t total_ = 0;
};

}  // namespace

Status check_perplexity(std::int64_t tokens, const PerplexityOptions& options) {
  if (options.policies.empty()) return invalid_argument("there is no policy to evaluate").about({"policies"});
  KVASIR_RETURN_IF_ERROR(check_chunk(options.chunk));
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

Result<std::vector<PerplexityResult>> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                                          std::span<const TokenId> tokens,
                                                          const PerplexityOptions& options, const Progress& progress) {
  KVASIR_RETURN_IF_ERROR(check_perplexity(static_cast<std::int64_t>(tokens.size()), options));
  std::vector<Run> runs;
  for (const std::string& policy : options.policies) {
    if (options.kv_types.empty()) runs.push_back({policy, model->kv_shape});
    for (const std::string& type : options.kv_types) {
      KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape,
                              kv_cache_shape(model->config, type, model->kv_shape.page.slots));
      runs.push_back({policy, shape});
    }
  }
  if (options.compare_full) return SideBySide(model, tokens, options, progress).run(runs);
  std::vector<PerplexityResult> results;
  const auto count = static_cast<std::int64_t>(runs.size());
  for (const Run& run : runs) {
    const auto before = static_cast<std::int64_t>(results.size());
    const auto of_all = [&](std::int64_t done, std::int64_t total) {
      return !progress || progress(before * total + done, count * total);
    };
    KVASIR_ASSIGN_OR_RETURN(std::vector<PerplexityResult> one,
                            SideBySide(model, tokens, options, of_all).run({&run, 1}));
    results.push_back(std::move(one.front()));
  }
  return results;
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

#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/chat_transcript.h"
#include "engine/beam_search.h"
#include "engine/guarded.h"
#include "engine/parallel_samples.h"
#include "engine/sequence_runner.h"
#include "generation/generation.h"

namespace kvasir {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Joins what a session consists of: a SequenceRunner that runs tokens, a ChatTranscript that writes messages behind the
// context, and a Generation for each answer.
class SessionImpl final : public Session {
 public:
  SessionImpl(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
              std::unique_ptr<RetentionPolicy> policy)
      : model_(std::move(model)),
        cache_(std::move(cache)),
        runner_(std::make_unique<SequenceRunner>(model_, cache_, std::move(policy))),
        transcript_(*model_->tokenizer, *model_->chat),
        chunk_(model_->options.chunk) {}
  SessionImpl(LoadedSession loaded, ChatTranscript transcript)
      : model_(loaded.sequence->shared_model()),
        cache_(loaded.sequence->cache()),
        runner_(std::make_unique<SequenceRunner>(std::move(loaded.sequence))),
        history_(std::move(loaded.extras.newest)),
        logits_(std::move(loaded.extras.logits)),
        transcript_(std::move(transcript)),
        sampler_(std::move(loaded.extras.sampler)),
        chunk_(loaded.head.chunk) {}

  Status read(std::string_view text, const Progress& progress) override {
    return guarded([&] { return read_text(text, progress); });
  }
  Status say(std::string_view role, std::string_view content, const Progress& progress) override {
    return guarded([&] { return say_message(role, content, progress); });
  }
  Result<GenerateResult> generate(const GenerateOptions& options,
                                  const std::function<bool(std::string_view)>& on_text) override {
    return guarded([&] { return generate_text(options, on_text); });
  }

  Result<std::vector<GenerateResult>> sample(
      const GenerateOptions& options, int count,
      const std::function<bool(std::size_t, std::string_view)>& on_text) override {
    return guarded([&] { return sample_texts(options, count, on_text); });
  }
  Result<std::vector<BeamResult>> beam_search(const BeamOptions& options,
                                              const std::function<bool(std::int64_t)>& progress) override {
    return guarded([&] { return search_beams(options, progress); });
  }
  Status save(const std::string& path) const override {
    return guarded([&] {
      return save_session(path, runner_->whole(), chunk_, {history_, logits_, transcript_.state(), sampler_});
    });
  }

  Result<std::unique_ptr<Session>> fork() const override {
    return guarded([&]() -> Result<std::unique_ptr<Session>> {
      KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<SequenceRunner> runner, runner_->fork());
      return {std::unique_ptr<Session>(new SessionImpl(*this, std::move(runner)))};
    });
  }

  Forgotten forgotten() const override {
    const std::optional<TokenIndex> first = runner_->first_dropped();
    if (!first) return {};
    const KvReport report = kv();
    return {*first, report.seen - static_cast<std::int64_t>(runner_->sequence().mean_length())};
  }

  KvReport kv() const override {
    KvReport report;
    report.policy = runner_->policy().traits().spec;
    report.codec = kv_type_name(cache_->shape().page.type);
    report.seen = runner_->sequence().next_index();
    report.kept = std::llround(runner_->sequence().mean_stored());
    report.kept_least = std::numeric_limits<std::int64_t>::max();
    for (int t = 0; t < runner_->sequence().tables(); ++t) {
      const PageTable& table = runner_->sequence().table(t);
      report.kept_least = std::min(report.kept_least, table.stored());
      report.kept_most = std::max(report.kept_most, table.stored());
    }
    report.dead_share = runner_->sequence().dead_share();
    report.kept_max = runner_->kept_max();
    report.bytes = cache_->budget().used();
    report.bytes_peak = cache_->budget().peak();
    report.budget = cache_->budget().capacity();
    return report;
  }

 private:
  SessionImpl(const SessionImpl& other, std::unique_ptr<SequenceRunner> runner)
      : model_(other.model_),
        cache_(other.cache_),
        runner_(std::move(runner)),
        history_(other.history_),
        logits_(other.logits_),
        unreported_(other.unreported_),
        prompt_seconds_(other.prompt_seconds_),
        transcript_(other.transcript_),
        sampler_(other.sampler_),
        chunk_(other.chunk_) {}

  Status read_text(std::string_view text, const Progress& progress);
  Status say_message(std::string_view role, std::string_view content, const Progress& progress);
  Status read_tokens(std::span<const TokenId> tokens, const Progress& progress);
  Result<GenerateResult> generate_text(const GenerateOptions& options,
                                       const std::function<bool(std::string_view)>& on_text);
  Result<std::vector<GenerateResult>> sample_texts(const GenerateOptions& options, int count,
                                                   const std::function<bool(std::size_t, std::string_view)>& on_text);
  Result<std::vector<BeamResult>> search_beams(const BeamOptions& options,
                                               const std::function<bool(std::int64_t)>& progress);
  Result<Generation> new_generation(const GenerateOptions& options) const;
  Status run_generated(TokenId token);

  void trim_history() {
    if (history_.size() >= 2 * kHistory)
      history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(kHistory));
  }

  std::int64_t context_left() const { return kvasir::context_left(runner_->whole()); }
  ContextUse context_use() const { return runner_->policy().context_use(); }

  static constexpr std::size_t kHistory = kMaxPenaltyWindow;

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<SequenceRunner> runner_;
  std::vector<TokenId> history_;  // the newest tokens of the context: at least kHistory, or all if there are fewer
  std::vector<float> logits_;     // of the newest token; empty if the last text was not read to its end
  std::int64_t unreported_ = 0;   // tokens read since the last generate()
  double prompt_seconds_ = 0;     // and the time it took
  ChatTranscript transcript_;
  std::optional<SamplerState> sampler_;  // of the last generation
  int chunk_;                            // of prompts; 0: the policy's own
};

Status SessionImpl::read_tokens(std::span<const TokenId> tokens, const Progress& progress) {
  if (tokens.empty()) return invalid_argument("the prompt holds no token; give some text");
  const auto total = static_cast<std::int64_t>(tokens.size());
  if (context_use() == ContextUse::kText && total > context_left())
    return exhausted(
               "the text has {} tokens, but policy '{}' keeps {} and the model's context of {} has "
               "room for {}; use a policy that forgets, such as streaming, or a shorter text",
               total, runner_->policy().traits().spec,
               runner_->policy().traits().positions == PositionMode::kOriginal ? "their positions" : "all of them",
               model_->config.context, std::max<std::int64_t>(0, context_left()))
        .about({"policy"});
  const double start = now_seconds();
  const std::int64_t before = runner_->sequence().next_index();
  logits_.clear();  // they belong to a token that is no longer the newest
  std::size_t noted = 0;
  const auto note = [&] {
    const auto done = static_cast<std::size_t>(runner_->sequence().next_index() - before);
    history_.insert(history_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(noted),
                    tokens.begin() + static_cast<std::ptrdiff_t>(done));
    noted = done;
  };
  const std::int64_t chunk = prompt_chunk(runner_->policy(), chunk_);
  Status full;
  const auto check_room = [&] {
    const std::int64_t next = std::min(chunk, total - static_cast<std::int64_t>(noted));
    if (context_use() == ContextUse::kHeld && next > context_left())
      full = exhausted(
                 "policy '{}' holds {} of the {} tokens seen, and the model's context of {} has no room for the next "
                 "{}; use a policy with a bound or a shorter text",
                 runner_->policy().traits().spec, runner_->sequence().longest(), runner_->sequence().next_index(),
                 model_->config.context, next)
                 .about({"policy"});
    return full.ok();
  };
  if (!check_room()) return full;
  Status status = runner_->feed(
      tokens, chunk_, SequenceRunner::Logits::kLast, [&](std::int64_t, int, std::span<const float> logits) {
        note();
        if (!logits.empty()) logits_.assign(logits.begin(), logits.end());
        return check_room() && (!progress || progress(static_cast<std::int64_t>(noted), total));
      });
  if (!full.ok()) status = full;
  unreported_ += static_cast<std::int64_t>(noted);
  prompt_seconds_ += now_seconds() - start;
  trim_history();
  if (status.ok() && noted < tokens.size()) return Status(StatusCode::kCancelled, "stopped");
  return status;
}

Status SessionImpl::read_text(std::string_view text, const Progress& progress) {
  const std::int64_t before = runner_->sequence().next_index();
  const bool start = before == 0;
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<TokenId> tokens,
      model_->tokenizer->encode(text, {.add_special = start, .parse_special = false, .continues = !start}));
  const Status status = read_tokens(tokens, progress);
  if (runner_->sequence().next_index() > before) transcript_.add_text();
  return status;
}

Status SessionImpl::say_message(std::string_view role, std::string_view content, const Progress& progress) {
  const std::int64_t before = runner_->sequence().next_index();
  KVASIR_ASSIGN_OR_RETURN(ChatTranscript::Rendered message, transcript_.render(role, content, {before, history_}));
  Status status;
  if (!message.waits) status = read_tokens(message.tokens, progress);
  transcript_.add(std::move(message), runner_->sequence().next_index() - before);
  return status;
}

// Runs a generated token; its logits are then those of the newest token.
Status SessionImpl::run_generated(TokenId token) {
  KVASIR_RETURN_IF_ERROR(runner_->feed(
      {&token, 1}, 1, SequenceRunner::Logits::kLast,
      [&](std::int64_t, int, std::span<const float> logits) {
        logits_.assign(logits.begin(), logits.end());
        return true;
      },
      SequenceRunner::Source::kGenerated));
  history_.push_back(token);
  trim_history();
  return {};
}

Result<GenerateResult> SessionImpl::generate_text(const GenerateOptions& options,
                                                  const std::function<bool(std::string_view)>& on_text) {
  KVASIR_RETURN_IF_ERROR(validate(options));
  if (logits_.empty()) return invalid_argument("there is nothing to continue; read some text first");

  GenerateResult result;
  result.prompt_tokens = std::exchange(unreported_, 0);
  result.prompt_seconds = std::exchange(prompt_seconds_, 0);
  KVASIR_ASSIGN_OR_RETURN(Generation generation, new_generation(options));
  result.seed = generation.state().sampler.options.seed;
  const auto wanted = [&](const std::string& text) { return text.empty() || !on_text || on_text(text); };

  const double start = now_seconds();
  transcript_.begin_answer();
  for (;;) {
    KVASIR_ASSIGN_OR_RETURN(const std::optional<TokenId> token, generation.push(logits_));
    if (!token) break;
    if (context_left() < 1) {
      generation.finish(FinishReason::kContext);
      break;
    }
    const Status status = run_generated(*token);
    if (status.code() == StatusCode::kResourceExhausted) {
      generation.finish(FinishReason::kKvMemory);
      break;
    }
    KVASIR_RETURN_IF_ERROR(status);
    if (!wanted(generation.accept(*token))) generation.finish(FinishReason::kCancelled);
  }
  const bool mid_character = generation.mid_character();
  for (std::string text = generation.flush(); !text.empty() && wanted(text);) text = generation.flush();
  transcript_.end_answer({generation.text(), *generation.finish_reason(), generation.end_token(), mid_character},
                         history_);
  sampler_ = generation.state().sampler;
  result.text = generation.text();
  result.tokens = generation.tokens();
  result.finish_reason = *generation.finish_reason();
  result.seconds = now_seconds() - start;
  result.kv = kv();
  return result;
}

Result<Generation> SessionImpl::new_generation(const GenerateOptions& options) const {
  GenerateOptions chosen = options;
  if (chosen.sampling.seed == 0) chosen.sampling.seed = std::random_device{}() | std::uint64_t{1} << 32;
  Generation generation(*model_->tokenizer, chosen, transcript_.stops(), history_);
  if (!options.resume || !sampler_) return generation;
  GenerationState state = generation.state();
  state.sampler = *sampler_;
  return Generation::from_state(*model_->tokenizer, std::move(state));
}

namespace {

Status check_width(std::string_view what, int count) {
  if (count >= 1 && count <= 64) return {};
  return invalid_argument("{}={} is outside 1 to 64", what, count).about({what});
}

}  // namespace

Result<std::vector<GenerateResult>> SessionImpl::sample_texts(
    const GenerateOptions& options, int count, const std::function<bool(std::size_t, std::string_view)>& on_text) {
  KVASIR_RETURN_IF_ERROR(validate(options));
  KVASIR_RETURN_IF_ERROR(check_width("samples", count));
  if (logits_.empty()) return invalid_argument("there is nothing to continue; read some text first");
  std::vector<Sample> samples;
  KVASIR_ASSIGN_OR_RETURN(const Generation first, new_generation(options));
  const std::uint64_t seed = first.state().sampler.options.seed;
  for (int i = 0; i < count; ++i) {
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> copy, runner_->whole().fork());
    samples.push_back({std::move(copy), first, logits_});
    if (i > 0) samples.back().generation.reseed(seed + static_cast<std::uint64_t>(i));
  }
  const double start = now_seconds();
  KVASIR_RETURN_IF_ERROR(run_samples(runner_->step(), samples, on_text));
  std::vector<GenerateResult> results;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const Generation& generation = samples[s].generation;
    GenerateResult result;
    result.text = generation.text();
    result.prompt_tokens = unreported_;
    result.prompt_seconds = prompt_seconds_;
    result.tokens = generation.tokens();
    result.finish_reason = *generation.finish_reason();
    result.seconds = now_seconds() - start;
    result.seed = seed + s;
    result.kv = kv();
    results.push_back(std::move(result));
  }
  return results;
}

Result<std::vector<BeamResult>> SessionImpl::search_beams(const BeamOptions& options,
                                                          const std::function<bool(std::int64_t)>& progress) {
  const BeamSearchOptions search{options.width, options.length_penalty, options.max_tokens, options.ignore_eos};
  KVASIR_RETURN_IF_ERROR(validate(search));
  if (logits_.empty()) return invalid_argument("there is nothing to continue; read some text first");
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> root, runner_->whole().fork());
  KVASIR_ASSIGN_OR_RETURN(const std::vector<Beam> beams, kvasir::beam_search(runner_->step(), std::move(root), logits_,
                                                                             *model_->tokenizer, search, progress));
  std::vector<BeamResult> results;
  for (const Beam& beam : beams) {
    TokenStream stream(*model_->tokenizer, false);
    BeamResult result;
    for (const TokenId token : beam.tokens) result.text += stream.push(token);
    result.text += stream.flush();
    result.tokens = static_cast<std::int64_t>(beam.tokens.size());
    result.log_probability = beam.log_probability;
    result.score = beam.score;
    result.finish_reason = beam.finish_reason;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

Result<std::unique_ptr<Session>> make_session(LoadedSession loaded) {
  const LoadedModel& model = loaded.sequence->model();
  KVASIR_ASSIGN_OR_RETURN(ChatTranscript transcript,
                          ChatTranscript::from_state(*model.tokenizer, *model.chat, std::move(loaded.extras.chat)));
  if (loaded.extras.sampler) KVASIR_RETURN_IF_ERROR(Sampler::from_state(*loaded.extras.sampler).status());
  return {std::unique_ptr<Session>(new SessionImpl(std::move(loaded), std::move(transcript)))};
}

std::unique_ptr<Session> make_session(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                                      std::unique_ptr<RetentionPolicy> policy) {
  return std::make_unique<SessionImpl>(std::move(model), std::move(cache), std::move(policy));
}

}  // namespace kvasir

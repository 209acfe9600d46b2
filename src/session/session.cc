#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"
#include "chat/chat_transcript.h"
#include "generation/generation.h"
#include "planning/cache_sizing.h"
#include "retention/registry.h"
#include "scheduler/task.h"
#include "sequence/context_rules.h"
#include "sequence/kv_report.h"
#include "session/beam_search.h"
#include "session/side_by_side.h"

namespace kvasir {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Joins a sequence, a ChatTranscript that writes messages behind its context, and a Generation per answer. Each call is
// one or several tasks that the engine's runner runs.
class SessionImpl final : public Session, public SessionBase {
 public:
  SessionImpl(std::shared_ptr<BatchRunner> runner, std::unique_ptr<RetentionPolicy> policy,
              std::optional<KvCodec> codec, int chunk, std::optional<std::vector<AppliedAdapter>> adapters)
      : model_(runner->model()), runner_(std::move(runner)), transcript_(*model_->tokenizer, *model_->chat) {
    text_.sequence =
        std::make_unique<Sequence>(model_, runner_->cache(), std::move(policy), codec, std::move(adapters));
    text_.chunk = chunk;
  }
  SessionImpl(std::shared_ptr<BatchRunner> runner, LoadedSession loaded, ChatTranscript transcript,
              std::shared_ptr<const SessionImage> image)
      : model_(runner->model()),
        runner_(std::move(runner)),
        text_{std::move(loaded.sequence), std::move(loaded.extras.newest), std::move(loaded.extras.logits),
              loaded.head.chunk},
        transcript_(std::move(transcript)),
        sampler_(std::move(loaded.extras.sampler)),
        image_(std::move(image)) {}

  Status read(std::string_view text, const Progress& progress) override;
  Status say(std::string_view role, std::string_view content, const Progress& progress) override;
  Result<GenerateResult> generate(const GenerateOptions& options,
                                  const std::function<bool(std::string_view)>& on_text) override;

  Result<std::vector<GenerateResult>> sample(
      const GenerateOptions& options, int count,
      const std::function<bool(std::size_t, std::string_view)>& on_text) override;
  Result<std::vector<BeamResult>> beam_search(const BeamOptions& options,
                                              const std::function<bool(std::int64_t)>& progress) override;
  Status save(const std::string& path) const override {
    return guarded([&] {
      if (image_ != nullptr) return write_file(path, image_->file.bytes());
      if (!text_.sequence->offloaded().empty()) return check_saveable(text_.sequence->policy());
      return save_session(path, *text_.sequence, text_.chunk,
                          {text_.newest, text_.logits, transcript_.state(), sampler_});
    });
  }

  Result<std::unique_ptr<Session>> fork() const override {
    return guarded([&]() -> Result<std::unique_ptr<Session>> {
      KVASIR_ASSIGN_OR_RETURN(Copy whole, copy());
      whole.pages.fill(~std::uint64_t{0});
      return {std::unique_ptr<Session>(new SessionImpl(*this, std::move(whole.sequence)))};
    });
  }

  Forgotten forgotten() const override {
    const std::optional<TokenIndex> first = text_.sequence->counters().first_dropped;
    if (!first) return {};
    return {*first, seen() - static_cast<std::int64_t>(text_.sequence->tables().mean_length())};
  }

  KvReport kv() const override { return kv_report(*text_.sequence); }

  const std::shared_ptr<BatchRunner>& runner() const override { return runner_; }
  const TextState& held() const override { return text_; }
  bool stored() const override { return image_ != nullptr; }
  Result<Copy> copy() const override;
  std::weak_ptr<const void> life() const override { return life_; }
  Result<RequestText> begin(const RequestOptions& options) override;
  void end(TextState text, const Generation& generation, bool mid_character) override;

 private:
  SessionImpl(const SessionImpl& other, std::unique_ptr<Sequence> sequence)
      : model_(other.model_),
        runner_(other.runner_),
        text_{std::move(sequence), other.text_.newest, other.text_.logits, other.text_.chunk},
        unreported_(other.unreported_),
        prompt_seconds_(other.prompt_seconds_),
        transcript_(other.transcript_),
        sampler_(other.sampler_) {}

  // Brings a stored session into the engine's cache.
  Status load() {
    if (image_ == nullptr) return {};
    KVASIR_ASSIGN_OR_RETURN(Copy whole, copy());
    whole.pages.fill(~std::uint64_t{0});
    text_.sequence = std::move(whole.sequence);
    image_.reset();
    return {};
  }

  // Calls `use` once the session is in the engine's cache. Errors: those of load() and of `use`.
  template <class Use>
  std::invoke_result_t<Use> when_loaded(const Use& use) {
    return guarded([&]() -> std::invoke_result_t<Use> {
      KVASIR_RETURN_IF_ERROR(load());
      return use();
    });
  }

  Status read_tokens(std::vector<TokenId> tokens, const Progress& progress);
  Generation new_generation(const GenerateOptions& options) const;

  Status check_continuable() const {
    KVASIR_RETURN_IF_ERROR(text_.sequence->status());
    if (text_.logits.empty()) return invalid_argument("there is nothing to continue; read some text first");
    return {};
  }
  TokenIndex seen() const { return text_.sequence->tables().next_index(); }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  TextState text_;
  std::int64_t unreported_ = 0;  // tokens read since the last generate()
  double prompt_seconds_ = 0;    // seconds of reading them
  ChatTranscript transcript_;
  std::optional<SamplerState> sampler_;            // of the last generation
  std::optional<ChatTranscript::Rendered> asked_;  // messages of the request that continues the session
  std::shared_ptr<const SessionImage> image_;      // holds its pages until they are loaded; null: they are loaded
  const std::shared_ptr<const void> life_ = std::make_shared<char>();
};

Result<SessionBase::Copy> SessionImpl::copy() const {
  if (image_ == nullptr) {
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> fork, text_.sequence->fork());
    return Copy{std::move(fork), {}};
  }
  // Makes all room at once, so that the file is not read again after cached prefixes are evicted.
  static_cast<void>(runner_->cache()->budget().make_available(text_.sequence->bytes()));
  KVASIR_ASSIGN_OR_RETURN(LoadedSession loaded, restore_session(image_->parts, model_, runner_->cache()));
  SessionPages pages(image_->parts, *loaded.sequence);
  return Copy{std::move(loaded.sequence), std::move(pages)};
}

Status SessionImpl::read_tokens(std::vector<TokenId> tokens, const Progress& progress) {
  if (tokens.empty()) return invalid_argument("the prompt holds no token; give some text");
  KVASIR_RETURN_IF_ERROR(text_.sequence->status());
  // Refuses text that could not be read even if no other session held memory.
  const KvSequence& tables = text_.sequence->tables();
  KVASIR_RETURN_IF_ERROR(check_prompt(text_.sequence->shape(), text_.sequence->policy(), context_place(tables),
                                      tables.shortest(), static_cast<std::int64_t>(tokens.size()), text_.chunk,
                                      model_->config.context, runner_->cache()->budget().capacity()));
  Task task(&text_, std::move(tokens));
  if (!task.prepare()) return task.status();
  const double start = now_seconds();
  text_.logits.clear();  // of a token that is no longer the newest
  Status status;
  while (status.ok() && task.prepare()) {
    status = runner_->pass(task);
    if (status.ok() && progress && !progress(task.prompt_done(), task.prompt_tokens()) && task.left() > 0)
      status = Status(StatusCode::kCancelled, "stopped");
  }
  unreported_ += task.prompt_done();
  prompt_seconds_ += now_seconds() - start;
  return status.ok() ? task.status() : status;
}

Status SessionImpl::read(std::string_view text, const Progress& progress) {
  return when_loaded([&]() -> Status {
    const std::int64_t before = seen();
    const bool start = before == 0;
    KVASIR_ASSIGN_OR_RETURN(
        std::vector<TokenId> tokens,
        model_->tokenizer->encode(text, {.add_special = start, .parse_special = false, .continues = !start}));
    const Status status = read_tokens(std::move(tokens), progress);
    if (seen() > before) transcript_.add_text();
    return status;
  });
}

Result<RequestText> SessionImpl::begin(const RequestOptions& options) {
  KVASIR_RETURN_IF_ERROR(text_.sequence->status());
  const bool start = seen() == 0;
  RequestText text;
  asked_.reset();
  if (!options.messages.empty()) {
    std::vector<ChatMessage> said;
    for (const Message& message : options.messages) said.push_back({message.role, message.content});
    KVASIR_ASSIGN_OR_RETURN(asked_, transcript_.render(said, {seen(), text_.newest}));
    text.tokens = asked_->tokens;
    text.stops = model_->chat->stop();
  } else {
    text.tokens = options.tokens;
    if (!options.prompt.empty()) {
      KVASIR_ASSIGN_OR_RETURN(
          text.tokens,
          model_->tokenizer->encode(
              options.prompt, {.add_special = start, .parse_special = options.parse_special, .continues = !start}));
    }
    text.stops.assign(transcript_.stops().begin(), transcript_.stops().end());
  }
  if (text.tokens.empty()) return invalid_argument("the prompt holds no token; give some text");
  return text;
}

void SessionImpl::end(TextState text, const Generation& generation, bool mid_character) {
  text_ = std::move(text);
  image_.reset();
  if (asked_) {
    const auto read = static_cast<std::int64_t>(asked_->tokens.size());
    transcript_.add(*std::exchange(asked_, {}), read);
  } else {
    transcript_.add_text();
  }
  sampler_ = generation.state().sampler;
  // Without any token the answer stays open, as after say().
  if (generation.tokens() == 0 && !generation.end_token()) return;
  transcript_.begin_answer();
  transcript_.end_answer({generation.text(), *generation.finish_reason(), generation.end_token(), mid_character},
                         text_.newest);
}

Status SessionImpl::say(std::string_view role, std::string_view content, const Progress& progress) {
  return when_loaded([&]() -> Status {
    KVASIR_RETURN_IF_ERROR(text_.sequence->status());
    const std::int64_t before = seen();
    KVASIR_ASSIGN_OR_RETURN(ChatTranscript::Rendered message,
                            transcript_.render(role, content, {before, text_.newest}));
    Status status;
    if (!message.waits) status = read_tokens(message.tokens, progress);
    transcript_.add(std::move(message), seen() - before);
    return status;
  });
}

Result<GenerateResult> SessionImpl::generate(const GenerateOptions& options,
                                             const std::function<bool(std::string_view)>& on_text) {
  return when_loaded([&]() -> Result<GenerateResult> {
    KVASIR_RETURN_IF_ERROR(validate(options, model_->config.vocabulary));
    KVASIR_RETURN_IF_ERROR(check_forced_texts(options, 1));
    KVASIR_RETURN_IF_ERROR(check_draft(options.draft, model_->draft != nullptr));
    KVASIR_RETURN_IF_ERROR(check_continuable());

    const std::int64_t prompt_tokens = std::exchange(unreported_, 0);
    const double prompt_seconds = std::exchange(prompt_seconds_, 0);
    Generation generation = new_generation(options);
    const std::uint64_t seed = generation.state().sampler.options.seed;
    const auto wanted = [&](const std::string& text) { return text.empty() || !on_text || on_text(text); };

    const double start = now_seconds();
    transcript_.begin_answer();
    Task task(&text_, {}, std::move(generation));
    while (task.prepare()) {
      if (const Status status = runner_->pass(task); status.code() == StatusCode::kResourceExhausted) {
        task.finish(FinishReason::kKvMemory);
      } else if (!status.ok()) {
        return status;
      } else if (!wanted(task.take_text())) {
        task.finish(FinishReason::kCancelled);
      }
    }
    KVASIR_RETURN_IF_ERROR(task.status());
    const bool mid_character = task.generation().mid_character();
    for (std::string text = task.flush(); !text.empty() && wanted(text);) text = task.flush();
    const Generation& done = task.generation();
    transcript_.end_answer({done.text(), *done.finish_reason(), done.end_token(), mid_character}, text_.newest);
    sampler_ = done.state().sampler;
    GenerateResult result = done.result();
    result.prompt_tokens = prompt_tokens;
    result.prompt_seconds = prompt_seconds;
    result.seed = seed;
    result.seconds = now_seconds() - start;
    result.kv = kv();
    return result;
  });
}

Generation SessionImpl::new_generation(const GenerateOptions& options) const {
  GenerateOptions chosen = with_seed(options);
  const bool resumes = options.resume && sampler_;
  if (resumes) chosen.sampling = sampler_->options;
  // Tokens read since the last generation count for penalties, too.
  Generation generation(*model_->tokenizer, chosen, transcript_.stops(), text_.newest);
  if (resumes) generation.resume(*sampler_);
  return generation;
}

namespace {

Status check_width(std::string_view what, int count) {
  if (count >= 1 && count <= kMostSamples) return {};
  return invalid_argument("{}={} is outside 1 to {}", what, count, kMostSamples).about({what});
}

}  // namespace

Result<std::vector<GenerateResult>> SessionImpl::sample(
    const GenerateOptions& options, int count, const std::function<bool(std::size_t, std::string_view)>& on_text) {
  return when_loaded([&]() -> Result<std::vector<GenerateResult>> {
    KVASIR_RETURN_IF_ERROR(validate(options, model_->config.vocabulary));
    KVASIR_RETURN_IF_ERROR(check_width("samples", count));
    KVASIR_RETURN_IF_ERROR(check_forced_texts(options, count));
    KVASIR_RETURN_IF_ERROR(check_draft(options.draft, model_->draft != nullptr));
    KVASIR_RETURN_IF_ERROR(check_continuable());
    const Generation first = new_generation(options);
    const std::uint64_t seed = first.state().sampler.options.seed;
    KVASIR_RETURN_IF_ERROR(check_seeds(seed, count));
    KVASIR_ASSIGN_OR_RETURN(std::vector<GenerateResult> results,
                            sample_side_by_side(*runner_, text_, first, seed, count, on_text));
    for (GenerateResult& result : results) {
      result.prompt_tokens = unreported_;
      result.prompt_seconds = prompt_seconds_;
    }
    return results;
  });
}

Result<std::vector<BeamResult>> SessionImpl::beam_search(const BeamOptions& options,
                                                         const std::function<bool(std::int64_t)>& progress) {
  return when_loaded([&]() -> Result<std::vector<BeamResult>> {
    const BeamSearchOptions search{options.width, options.length_penalty, options.max_tokens, options.ignore_eos};
    KVASIR_RETURN_IF_ERROR(validate(search));
    KVASIR_RETURN_IF_ERROR(check_continuable());
    runner_->drop_drafts();
    KVASIR_RETURN_IF_ERROR(runner_->step().repeat(*text_.sequence, text_.chunk));
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> root, text_.sequence->fork());
    KVASIR_ASSIGN_OR_RETURN(
        const std::vector<Beam> beams,
        kvasir::beam_search(runner_->step(), std::move(root), text_.logits, *model_->tokenizer, search, progress));
    std::vector<BeamResult> results;
    for (const Beam& beam : beams) {
      TokenStream stream(*model_->tokenizer, false);
      BeamResult result;
      for (const TokenId token : beam.tokens) result.text += stream.push_shown(token);
      result.text += stream.flush();
      result.tokens = static_cast<std::int64_t>(beam.tokens.size());
      result.log_probability = beam.log_probability;
      result.score = beam.score;
      result.finish_reason = beam.finish_reason;
      results.push_back(std::move(result));
    }
    return results;
  });
}

}  // namespace

std::unique_ptr<Session> make_session(std::shared_ptr<BatchRunner> runner, std::unique_ptr<RetentionPolicy> policy,
                                      std::optional<int> chunk, std::optional<KvCodec> codec,
                                      std::optional<std::vector<AppliedAdapter>> adapters) {
  const int chosen = chunk.value_or(runner->model()->options.chunk);
  return std::make_unique<SessionImpl>(std::move(runner), std::move(policy), codec, chosen, std::move(adapters));
}

Result<std::unique_ptr<Session>> make_session(std::shared_ptr<BatchRunner> runner, LoadedSession loaded,
                                              std::shared_ptr<const SessionImage> image) {
  const LoadedModel& model = *runner->model();
  KVASIR_ASSIGN_OR_RETURN(ChatTranscript transcript,
                          ChatTranscript::from_state(*model.tokenizer, *model.chat, std::move(loaded.extras.chat)));
  if (loaded.extras.sampler) KVASIR_RETURN_IF_ERROR(Sampler::from_state(*loaded.extras.sampler).status());
  return {std::unique_ptr<Session>(
      new SessionImpl(std::move(runner), std::move(loaded), std::move(transcript), std::move(image)))};
}

}  // namespace kvasir

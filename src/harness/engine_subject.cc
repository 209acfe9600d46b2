#include "harness/engine_subject.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "harness/prompt_tokens.h"

namespace kvasir {
namespace {

constexpr int kMostSteps = 32;  // of an item, under way: each holds a fork of its context

// A request under way, and what its answer is part of.
struct Step {
  enum class Kind {
    kContext,  // reads a context, or in a conversation a question with its right answer, for the questions behind it
    kQuestion,
    kRolling,
  };
  Kind kind = Kind::kQuestion;
  std::size_t item = 0;
  std::size_t question = 0;
  std::size_t text = 0;              // kQuestion: the first text that is scored; kRolling: the window
  std::shared_ptr<Session> session;  // that it continues; may be null
  RequestOptions request;
  std::size_t ended = 0;  // samples
};

// An item under way.
struct OpenItem {
  ItemTokens tokens;
  std::vector<QuestionAnswer> answers;
  std::vector<RollingWindow> windows;
  std::size_t next = 0;       // the question to ask next on a context, and in a conversation to read with its answer
  int steps = 0;              // under way or queued
  std::optional<Step> later;  // of a context that was read: asks on when fewer steps are under way
};

class EngineSubject : public Subject {
 public:
  EngineSubject(Engine* engine, nlohmann::ordered_json identity, std::optional<std::int32_t> begin)
      : engine_(*engine), identity_(std::move(identity)), begin_(begin) {}

  nlohmann::ordered_json identity() const override { return identity_; }

  Status ask(std::span<const TaskItem* const> items, const AskOptions& options, const OnAnswer& on_answer,
             const std::function<bool()>& tick) override {
    options_ = &options;
    on_answer_ = &on_answer;
    stopped_ = false;
    const Status status = run(items, tick);
    for (const auto& [id, step] : running_) (void)engine_.cancel(id);
    running_.clear();
    queued_.clear();
    postponed_.clear();
    open_.clear();
    while (engine_.unfinished() > 0 && engine_.poll().ok()) {
    }
    return status;
  }

 private:
  Status run(std::span<const TaskItem* const> items, const std::function<bool()>& tick) {
    std::size_t next = 0;
    while (next < items.size() || !open_.empty()) {
      // A context that had no room waits until another item gives its own back, and no further item begins.
      while (next < items.size() && postponed_.empty() && open_.size() < static_cast<std::size_t>(options_->parallel)) {
        begin_item(*items[next], next);
        ++next;
      }
      submit_queued();
      if (engine_.unfinished() > 0) {
        KVASIR_ASSIGN_OR_RETURN(const std::vector<Event> events, engine_.poll());
        for (const Event& event : events) take(event);
      }
      close_items();
      if (stopped_ || (tick && !tick())) return Status(StatusCode::kCancelled, "");
    }
    return {};
  }

  std::int64_t room() const { return options_->room > 0 ? options_->room : engine_.model().context; }

  // The first error of a question stays.
  static void fail(QuestionAnswer& answer, const Status& status) {
    if (answer.status.ok()) answer.status = status;
  }
  static void fail(OpenItem& open, const Status& status) {
    for (std::size_t q = open.next; q < open.answers.size(); ++q) fail(open.answers[q], status);
  }

  void begin_item(const TaskItem& item, std::size_t index) {
    OpenItem& open = open_[index];
    open.answers.resize(item.questions.size());
    for (QuestionAnswer& answer : open.answers) answer.left_out = 0;
    if (options_->request == TaskRequest::kRolling) return begin_rolling(item, index, open);
    Result<ItemTokens> tokens = item_tokens(engine_.text(), item, *options_, room());
    if (!tokens.ok()) return fail(open, tokens.status());
    open.tokens = std::move(*tokens);
    for (std::size_t q = 0; q < open.answers.size(); ++q) {
      open.answers[q].status = open.tokens.questions[q].status;
      open.answers[q].left_out = open.tokens.questions[q].left_out;
    }
    // Without a context, what comes first is the question.
    if (options_->reading == Reading::kTogether ||
        (options_->reading == Reading::kContextFirst && open.tokens.context.empty())) {
      for (std::size_t q = 0; q < open.answers.size(); ++q)
        if (open.answers[q].status.ok()) add_question(index, q, nullptr);
      return;
    }
    if (std::ranges::none_of(open.answers, [](const QuestionAnswer& each) { return each.status.ok(); })) return;
    Result<std::unique_ptr<Session>> session =
        engine_.new_session({.policy = options_->policy, .codec = options_->codec, .sequences = 1});
    if (!session.ok()) return fail(open, session.status());
    Step step{.kind = Step::Kind::kContext, .item = index, .session = std::move(*session)};
    step.request.tokens = open.tokens.context;
    if (open.tokens.context.empty()) return ask_on(step);
    step.request.session = step.session;
    step.request.generate.max_tokens = 0;
    queue(std::move(step));
  }

  void begin_rolling(const TaskItem& item, std::size_t index, OpenItem& open) {
    const Result<Tokens> tokens = engine_.text().encode(item.questions.front().prompt, false);
    if (!tokens.ok() || tokens->empty())
      return fail(open, tokens.ok() ? invalid_argument("the text is empty") : tokens.status());
    open.windows = rolling_windows(std::span(*tokens).subspan(begin_ ? 0 : 1), begin_.value_or(tokens->front()),
                                   static_cast<std::size_t>(std::max<std::int64_t>(room(), 2)));
    open.answers.front().scores.resize(1);
    for (std::size_t w = 0; w < open.windows.size(); ++w) {
      Step step{.kind = Step::Kind::kRolling, .item = index, .text = w};
      step.request.tokens = open.windows[w].tokens;
      step.request.policy = options_->policy;
      step.request.codec = options_->codec;
      step.request.generate.max_tokens = 0;
      step.request.generate.prompt_logprobs = 0;
      queue(std::move(step));
    }
  }

  // Queues what a question asks. `session`: that it continues, which is forked for each text; null: an empty cache.
  void add_question(std::size_t index, std::size_t question, const std::shared_ptr<Session>& session) {
    OpenItem& open = open_[index];
    const QuestionTokens& tokens = open.tokens.questions[question];
    open.answers[question].scores.resize(tokens.texts.size());
    const std::size_t steps = session != nullptr && !tokens.texts.empty() ? tokens.texts.size() : 1;
    for (std::size_t s = 0; s < steps; ++s) {
      Step step{.item = index, .question = question, .text = s};
      RequestOptions& request = step.request;
      request.tokens = tokens.prompt;
      request.generate.sampling.temperature = 0;
      if (options_->request == TaskRequest::kGenerate) {
        request.template_stops = tokens.stops;
        request.generate.stop = options_->stop;
        request.generate.max_tokens = options_->max_tokens;
        request.generate.min_tokens = options_->min_tokens;
      } else {
        request.generate.logprobs = 0;
        request.generate.forced_texts = tokens.texts;
        if (session != nullptr) request.generate.forced_texts = {tokens.texts[s]};
        request.samples = static_cast<int>(request.generate.forced_texts.size());
      }
      if (session == nullptr) {
        request.policy = options_->policy;
        request.codec = options_->codec;
      } else {
        Result<std::unique_ptr<Session>> fork = session->fork();
        if (!fork.ok()) {
          open.answers[question].status = fork.status();
          return;
        }
        step.session = std::move(*fork);
        request.session = step.session;
        request.releases_session = true;
      }
      queue(std::move(step));
    }
  }

  void queue(Step step) {
    ++open_[step.item].steps;
    queued_.push_back(std::move(step));
  }

  void submit_queued() {
    while (!queued_.empty()) {
      Step step = std::move(queued_.front());
      queued_.pop_front();
      const Result<RequestId> id = engine_.submit(step.request);
      if (step.kind != Step::Kind::kContext) step.request = {};  // a context may have to be read again
      if (id.ok()) {
        running_.emplace(*id, std::move(step));
      } else {
        end_step(step, id.status());
      }
    }
  }

  // Returns why a result is no answer; otherwise ok.
  static Status failure_of(const Event& event) {
    if (event.kind == Event::Kind::kFailed) return event.status;
    switch (event.result.finish_reason) {
      case FinishReason::kKvMemory: return exhausted("the KV memory is too small: {}", event.status.message());
      case FinishReason::kContext: return exhausted("the context is too small for the prompt and its answer");
      case FinishReason::kFailed: return event.result.status;
      default: return {};
    }
  }

  void take(const Event& event) {
    if (event.kind != Event::Kind::kFinished && event.kind != Event::Kind::kFailed) return;
    const auto found = running_.find(event.request);
    if (found == running_.end()) return;
    Step& step = found->second;
    const Status status = failure_of(event);
    if (status.ok()) record(step, static_cast<std::size_t>(event.sample), event.result);
    OpenItem& open = open_[step.item];
    if (step.kind != Step::Kind::kContext) fail(open.answers[step.question], status);
    const bool scores =
        step.kind == Step::Kind::kQuestion && step.session == nullptr && options_->request == TaskRequest::kChoices;
    const std::size_t samples = scores ? open.tokens.questions[step.question].texts.size() : 1;
    if (++step.ended < samples) return;
    Step done = std::move(step);
    running_.erase(found);
    end_step(done, status);
  }

  // Adds what a sample gave to its answer.
  void record(const Step& step, std::size_t sample, const GenerateResult& result) {
    if (step.kind == Step::Kind::kContext) return;
    OpenItem& open = open_[step.item];
    QuestionAnswer& answer = open.answers[step.question];
    const auto raise = [](auto& most, auto value) {
      if (!most || *most < value) most = value;
    };
    raise(answer.prompt_seconds, result.prompt_seconds);
    answer.seconds = std::max(answer.seconds, result.seconds);
    raise(answer.kept, result.kv.kept_max);
    raise(answer.kv_bytes, result.kv.bytes_peak);
    if (step.kind == Step::Kind::kRolling) {
      const RollingWindow& window = open.windows[step.text];
      // prompt_choices[i] belongs to token i + 1.
      add_scores(std::span(result.prompt_choices).subspan(window.first_scored - 1), answer.scores.front());
      answer.prompt_tokens = answer.prompt_tokens.value_or(0) + result.prompt_tokens;
      answer.answer_tokens = answer.scores.front().tokens;
      return;
    }
    answer.prompt_tokens = std::ssize(open.tokens.context) + result.prompt_tokens;
    if (result.cached > 0) raise(answer.cached_tokens, result.cached);
    if (options_->request == TaskRequest::kGenerate) {
      answer.text = result.text;
      answer.answer_tokens = result.tokens;
      return;
    }
    TextScore& score = answer.scores[step.session != nullptr ? step.text : sample];
    add_scores(result.choices, score);
    for (const GeneratedToken& token : result.choices) score.bytes += std::ssize(token.token.bytes);
    answer.answer_tokens = answer.answer_tokens.value_or(0) + score.tokens;
  }

  static void add_scores(std::span<const GeneratedToken> tokens, TextScore& score) {
    for (const GeneratedToken& token : tokens) {
      score.log_likelihood += token.token.log_probability;
      score.greedy = score.greedy && token.token.rank == 1;
      ++score.tokens;
    }
  }

  void end_step(Step& step, const Status& status) {
    OpenItem& open = open_[step.item];
    --open.steps;
    if (step.kind != Step::Kind::kContext) {
      fail(open.answers[step.question], status);
      if (!open.later || open.steps >= kMostSteps) return;
      Step read = std::move(*open.later);
      open.later.reset();
      return ask_on(read);
    }
    if (status.code() == StatusCode::kResourceExhausted && open_.size() > postponed_.size() + 1) {
      ++open.steps;
      step.ended = 0;
      postponed_.push_back(std::move(step));
      return;
    }
    if (!status.ok()) return fail(open, status);
    ask_on(step);
  }

  // Asks the questions that are left behind what `step` has read, each on a fork, as many as may be under way; of a
  // conversation the next one, which is then read with its right answer.
  void ask_on(Step& step) {
    OpenItem& open = open_[step.item];
    for (; open.next < open.answers.size(); ++open.next) {
      if (!open.answers[open.next].status.ok()) continue;
      if (open.steps >= kMostSteps) {
        open.later = std::move(step);
        return;
      }
      if (options_->reading == Reading::kConversation) return continue_conversation(step);
      add_question(step.item, open.next, step.session);
    }
  }

  void continue_conversation(const Step& step) {
    OpenItem& open = open_[step.item];
    const std::size_t question = open.next++;
    add_question(step.item, question, step.session);
    if (open.next == open.answers.size()) return;
    Step golden{.kind = Step::Kind::kContext, .item = step.item, .session = step.session};
    golden.request.tokens = open.tokens.questions[question].prompt;
    const Tokens& right = open.tokens.questions[question].golden;
    golden.request.tokens.insert(golden.request.tokens.end(), right.begin(), right.end());
    golden.request.session = golden.session;
    golden.request.generate.max_tokens = 0;
    queue(std::move(golden));
  }

  void close_items() {
    bool closed = false;
    for (auto open = open_.begin(); open != open_.end();) {
      if (open->second.steps > 0) {
        ++open;
        continue;
      }
      for (std::size_t q = 0; q < open->second.answers.size() && !stopped_; ++q)
        if (!(*on_answer_)(open->first, q, std::move(open->second.answers[q]))) stopped_ = true;
      open = open_.erase(open);
      closed = true;
    }
    if (!closed) return;
    for (Step& step : postponed_) queued_.push_back(std::move(step));
    postponed_.clear();
  }

  Engine& engine_;
  nlohmann::ordered_json identity_;
  std::optional<std::int32_t> begin_;
  const AskOptions* options_ = nullptr;
  const OnAnswer* on_answer_ = nullptr;
  bool stopped_ = false;
  std::map<std::size_t, OpenItem> open_;
  std::deque<Step> queued_;
  std::vector<Step> postponed_;  // contexts for which others hold the memory
  std::map<RequestId, Step> running_;
};

}  // namespace

std::unique_ptr<Subject> make_engine_subject(Engine* engine, nlohmann::ordered_json identity,
                                             std::optional<std::int32_t> begin) {
  return std::make_unique<EngineSubject>(engine, std::move(identity), begin);
}

}  // namespace kvasir

#include "kvasir/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "base/status.h"
#include "engine/guarded.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "engine/sequence_runner.h"
#include "engine/stop_matcher.h"
#include "retention/registry.h"
#include "sampler/sampler.h"

namespace kvasir {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class SessionImpl final : public Session {
 public:
  SessionImpl(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
              std::unique_ptr<RetentionPolicy> policy)
      : model_(std::move(model)),
        cache_(std::move(cache)),
        context_use_(policy->context_use()),
        runner_(std::make_unique<SequenceRunner>(model_, cache_, std::move(policy))) {}

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
    report.policy = runner_->policy().spec();
    report.codec = kv_type_name(model_->kv_shape.page.type);
    report.seen = runner_->sequence().next_id();
    report.kept = std::llround(runner_->sequence().mean_length());
    report.kept_least = std::numeric_limits<std::int64_t>::max();
    for (int t = 0; t < runner_->sequence().tables(); ++t) {
      const LaneGroup& table = runner_->sequence().table(t);
      report.kept_least = std::min(report.kept_least, table.length());
      report.kept_most = std::max(report.kept_most, table.length());
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
        context_use_(other.context_use_),
        runner_(std::move(runner)),
        history_(other.history_),
        logits_(other.logits_),
        unreported_(other.unreported_),
        prompt_seconds_(other.prompt_seconds_),
        messages_(other.messages_),
        chat_(other.chat_),
        last_(other.last_) {}

  // How the context ends, in the eyes of the next message.
  struct Ending {
    enum class Kind {
      kClosed,    // nothing is open
      kAwaited,   // an answer is, and nothing is in it yet
      kOpen,      // a message is, and wants the template's closing text
      kEndToken,  // the model ended its text with `token`, which is not in the context yet
      kStop,      // with `stop`, a string of the template, which is
    };
    Kind kind = Kind::kClosed;
    TokenId token = 0;
    std::string stop;
  };

  Status read_text(std::string_view text, const Progress& progress);
  Status say_message(std::string_view role, std::string_view content, const Progress& progress);
  Result<ChatPrompt> render_newest(bool* fills) const;
  Result<std::vector<TokenId>> encode_message(ChatPrompt message, bool fills) const;
  Result<GenerateResult> generate_text(const GenerateOptions& options,
                                       const std::function<bool(std::string_view)>& on_text);
  Ending ending(const GenerateResult& result, TokenId end_token, bool clean_stop) const;
  void note_answer(std::string_view text);
  bool in_text() const;
  bool context_ends_with(std::string_view text) const;
  Result<bool> template_ended_with(const std::string& text) const;
  Result<std::string> missing_end() const;

  // What was left to write or had been written no longer ends the context: something follows.
  void go_on() {
    last_ = {};
    if (chat_) last_.kind = Ending::Kind::kOpen;
  }

  void trim_history() {
    if (history_.size() >= 2 * kHistory)
      history_.erase(history_.begin(), history_.end() - static_cast<std::ptrdiff_t>(kHistory));
  }

  std::int64_t context_left() const {
    const std::int64_t context = model_->config.context;
    switch (context_use_) {
      case ContextUse::kNone: break;
      case ContextUse::kText: return context - runner_->sequence().next_id();
      case ContextUse::kHeld: return context - runner_->sequence().longest();
    }
    return std::int64_t{1} << 62;
  }

  Status read_tokens(std::span<const TokenId> tokens, const Progress& progress) {
    if (tokens.empty()) return invalid_argument("the prompt holds no token; give some text");
    const auto total = static_cast<std::int64_t>(tokens.size());
    if (context_use_ == ContextUse::kText && total > context_left())
      return exhausted(
          "the text has {} tokens, but policy '{}' keeps {} and the model's context of {} has "
          "room for {}; use a policy that forgets, such as streaming (kvasir policies), or a shorter text",
          total, runner_->policy().spec(),
          runner_->policy().positions() == PositionMode::kOriginal ? "their positions" : "all of them",
          model_->config.context, std::max<std::int64_t>(0, context_left()));
    const double start = now_seconds();
    const std::int64_t before = runner_->sequence().next_id();
    logits_.clear();  // they belong to a token that is no longer the newest
    std::size_t noted = 0;
    const auto note = [&] {
      const auto done = static_cast<std::size_t>(runner_->sequence().next_id() - before);
      history_.insert(history_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(noted),
                      tokens.begin() + static_cast<std::ptrdiff_t>(done));
      noted = done;
    };
    const std::int64_t chunk = prompt_chunk(runner_->policy(), model_->options.chunk);
    Status full;
    const auto check_room = [&] {
      const std::int64_t next = std::min(chunk, total - static_cast<std::int64_t>(noted));
      if (context_use_ == ContextUse::kHeld && next > context_left())
        full = exhausted(
            "policy '{}' holds {} of the {} tokens seen, and the model's context of {} has no room for the next {}; "
            "use a policy with a bound (kvasir policies) or a shorter text",
            runner_->policy().spec(), runner_->sequence().longest(), runner_->sequence().next_id(),
            model_->config.context, next);
      return full.ok();
    };
    if (!check_room()) return full;
    Status status =
        runner_->feed(tokens, model_->options.chunk, SequenceRunner::Logits::kLast,
                      [&](std::int64_t, int, std::span<const float> logits) {
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

  static constexpr std::size_t kHistory = kMaxPenaltyWindow;

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  ContextUse context_use_;
  std::unique_ptr<SequenceRunner> runner_;
  std::vector<TokenId> history_;  // the newest tokens: kHistory at least, if there were so many
  std::vector<float> logits_;     // of the newest token; empty if nothing was read to its end
  std::int64_t unreported_ = 0;
  double prompt_seconds_ = 0;
  std::vector<ChatMessage> messages_;  // said and answered
  bool chat_ = false;                  // some message was written
  Ending last_;
};

Status SessionImpl::read_text(std::string_view text, const Progress& progress) {
  const std::int64_t before = runner_->sequence().next_id();
  const bool start = before == 0;
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<TokenId> tokens,
      model_->tokenizer->encode(text, {.add_special = start, .parse_special = false, .continues = !start}));
  const Status status = read_tokens(tokens, progress);
  if (runner_->sequence().next_id() > before && last_.kind != Ending::Kind::kClosed) go_on();
  return status;
}

// Messages that go again unless they are kept.
class NewMessages {
 public:
  explicit NewMessages(std::vector<ChatMessage>* messages) : messages_(messages), size_(messages->size()) {}
  NewMessages(const NewMessages&) = delete;
  NewMessages& operator=(const NewMessages&) = delete;
  ~NewMessages() {
    if (!kept_) messages_->resize(size_);
  }
  void keep() { kept_ = true; }

 private:
  std::vector<ChatMessage>* messages_;
  std::size_t size_;
  bool kept_ = false;
};

Status SessionImpl::say_message(std::string_view role, std::string_view content, const Progress& progress) {
  bool fills = role == "assistant" && last_.kind == Ending::Kind::kAwaited;
  const bool open_answer = role == "user";
  NewMessages added(&messages_);
  // An answer that nobody gave stands empty in the context.
  if (!fills && !messages_.empty() && messages_.back().role == "user") messages_.push_back({"assistant", ""});
  messages_.push_back({std::string(role), std::string(content)});
  KVASIR_ASSIGN_OR_RETURN(ChatPrompt prompt, render_newest(&fills));
  if (prompt.segments.empty()) {  // it becomes part of the next one
    added.keep();
    return {};
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, encode_message(std::move(prompt), fills));
  const std::int64_t before = runner_->sequence().next_id();
  const Status status = read_tokens(tokens, progress);
  const std::int64_t done = runner_->sequence().next_id() - before;
  if (done == 0) return status;  // the context is as it was
  added.keep();
  chat_ = true;
  last_ = {};
  // A message that was not read to its end stays open.
  if (open_answer) last_.kind = Ending::Kind::kAwaited;
  if (done < static_cast<std::int64_t>(tokens.size())) last_.kind = Ending::Kind::kOpen;
  return status;
}

// The newest message. `fills`: it is the answer that the context ends with the start of, which is not written again;
// false on return where the template starts an answer otherwise than it writes one. A start that lets the model think
// (DeepSeek R1) is filled behind an empty thought, as such models write it.
Result<ChatPrompt> SessionImpl::render_newest(bool* fills) const {
  const std::size_t first = messages_.size() - 1;
  KVASIR_ASSIGN_OR_RETURN(ChatPrompt prompt,
                          model_->chat->render_next(messages_, first, messages_.back().role == "user"));
  if (!*fills || prompt.segments.empty()) return prompt;
  KVASIR_ASSIGN_OR_RETURN(const ChatPrompt opened,
                          model_->chat->render_next(std::span(messages_).first(first), first, true));
  const std::string start = opened.text();
  std::string& text = prompt.segments.front().text;
  const auto common = static_cast<std::size_t>(
      std::mismatch(start.begin(), start.end(), text.begin(), text.end()).first - start.begin());
  const std::string_view more = std::string_view(start).substr(common);
  *fills = more.empty() || more.starts_with("<think>");
  if (!*fills) return prompt;
  const bool thinks = !more.empty() && more.find("</think>") == std::string_view::npos;
  text.replace(0, common, thinks ? "\n</think>\n\n" : "");
  return prompt;
}

// A message's tokens, with what is missing to close the one before.
Result<std::vector<TokenId>> SessionImpl::encode_message(ChatPrompt message, bool fills) const {
  const bool start = runner_->sequence().next_id() == 0;
  const ChatTemplate::Closing& closing = model_->chat->closing();
  std::vector<TextSegment>& segments = message.segments;
  if (fills) return encode_chat(*model_->tokenizer, message, false, in_text());
  if (last_.kind == Ending::Kind::kEndToken) {
    segments.insert(segments.begin(), {closing.after, closing.control});
    KVASIR_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, encode_chat(*model_->tokenizer, message, false));
    tokens.insert(tokens.begin(), last_.token);
    return tokens;
  }
  if (last_.kind != Ending::Kind::kClosed) {
    const std::string opened = closing.before + closing.end + closing.after + segments.front().text;
    if (last_.kind == Ending::Kind::kStop && opened.starts_with(last_.stop)) {
      segments.front().text = opened.substr(last_.stop.size());  // the answer ran into this very message
    } else {
      KVASIR_ASSIGN_OR_RETURN(std::string missing, missing_end());
      segments.insert(segments.begin(), {std::move(missing), closing.control});
    }
  }
  return encode_chat(*model_->tokenizer, message, start, in_text());
}

// Whether the context ends in the midst of a text, rather than with a mark, which starts a new one.
bool SessionImpl::in_text() const {
  if (history_.empty()) return false;
  const TokenKind newest = model_->tokenizer->vocabulary().kinds[static_cast<std::size_t>(history_.back())];
  return newest != TokenKind::kControl && newest != TokenKind::kUserDefined;
}

// What the context lacks of what closes a message.
Result<std::string> SessionImpl::missing_end() const {
  const ChatTemplate::Closing& closing = model_->chat->closing();
  KVASIR_ASSIGN_OR_RETURN(const bool closed, template_ended_with(closing.end + closing.after));
  if (closed) return std::string();
  if (!history_.empty() && model_->tokenizer->is_end(history_.back())) return closing.after;
  KVASIR_ASSIGN_OR_RETURN(const bool ended, template_ended_with(closing.end));
  return ended ? closing.after : closing.before + closing.end + closing.after;
}

// Whether the context ends with a text of the template's.
Result<bool> SessionImpl::template_ended_with(const std::string& text) const {
  if (!model_->chat->closing().control || !model_->chat->end_token()) return context_ends_with(text);
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<TokenId> tokens,
      model_->tokenizer->encode(text, {.add_special = false, .parse_special = true, .continues = true}));
  return history_.size() >= tokens.size() && std::equal(tokens.rbegin(), tokens.rend(), history_.rbegin());
}

bool SessionImpl::context_ends_with(std::string_view text) const {
  std::string end;
  for (auto token = history_.rbegin(); token != history_.rend() && end.size() < text.size(); ++token)
    end.insert(0, model_->tokenizer->bytes_of(*token));
  return end.ends_with(text);
}

void SessionImpl::note_answer(std::string_view text) {
  if (messages_.empty() || messages_.back().role != "assistant") messages_.push_back({"assistant", ""});
  messages_.back().content += text;
}

SessionImpl::Ending SessionImpl::ending(const GenerateResult& result, TokenId end_token, bool clean_stop) const {
  if (result.finish_reason == FinishReason::kEnd) return {Ending::Kind::kEndToken, end_token, {}};
  if (!chat_) return {};
  if (result.finish_reason == FinishReason::kStop && clean_stop)
    for (const std::string& stop : model_->chat->stop())
      if (context_ends_with(stop)) return {Ending::Kind::kStop, 0, stop};
  return {Ending::Kind::kOpen, 0, {}};
}

Result<GenerateResult> SessionImpl::generate_text(const GenerateOptions& options,
                                                  const std::function<bool(std::string_view)>& on_text) {
  KVASIR_RETURN_IF_ERROR(validate(options.sampling));
  if (options.max_tokens < -1) return invalid_argument("max_tokens={} is below -1 (no limit)", options.max_tokens);
  for (const std::string& stop : options.stop)
    if (stop.empty()) return invalid_argument("an empty stop string would end every text; remove it");
  if (logits_.empty()) return invalid_argument("there is nothing to continue; read some text first");

  GenerateResult result;
  result.prompt_tokens = std::exchange(unreported_, 0);
  result.prompt_seconds = std::exchange(prompt_seconds_, 0);
  SamplingOptions sampling = options.sampling;
  if (sampling.seed == 0) sampling.seed = std::random_device{}() | std::uint64_t{1} << 32;
  result.seed = sampling.seed;
  Sampler sampler(sampling);
  for (const TokenId token : history_) sampler.observe(token);

  std::vector<std::string> stops = options.stop;
  if (chat_)
    for (const std::string& stop : model_->chat->stop()) stops.push_back(stop);
  StopMatcher matcher(stops);
  TokenStream stream(*model_->tokenizer, false);
  const double start = now_seconds();
  go_on();
  TokenId end_token = 0;
  bool wanted = true;
  const auto emit = [&](std::string_view piece) {
    const std::string text = matcher.push(piece);
    if (text.empty()) return;
    result.text += text;
    if (on_text) wanted = on_text(text);
  };
  for (;;) {
    if (matcher.stopped()) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    if (!wanted) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
    if (options.max_tokens >= 0 && result.tokens >= options.max_tokens) {
      result.finish_reason = FinishReason::kLength;
      break;
    }
    const TokenId token = sampler.sample(logits_);
    if (token < 0) return Status(StatusCode::kDataLoss, "the model's output is not a number; the file is damaged");
    if (!options.ignore_eos && model_->tokenizer->is_end(token)) {
      end_token = token;
      result.finish_reason = FinishReason::kEnd;
      break;
    }
    if (context_left() < 1) {
      result.finish_reason = FinishReason::kContext;
      break;
    }
    const Status status = runner_->feed(
        {&token, 1}, 1, SequenceRunner::Logits::kLast,
        [&](std::int64_t, int, std::span<const float> logits) {
          logits_.assign(logits.begin(), logits.end());
          return true;
        },
        SequenceRunner::Source::kGenerated);
    if (status.code() == StatusCode::kResourceExhausted) {
      result.finish_reason = FinishReason::kKvMemory;
      break;
    }
    KVASIR_RETURN_IF_ERROR(status);
    sampler.observe(token);
    history_.push_back(token);
    trim_history();
    ++result.tokens;
    emit(stream.push(token));
  }
  // Who said stop hears no more, and the result's text is what was heard.
  const std::string incomplete = stream.flush();
  last_ = ending(result, end_token, incomplete.empty());
  if (wanted && result.finish_reason != FinishReason::kStop) {
    emit(incomplete);
    const std::string rest = wanted ? matcher.flush() : std::string();
    result.text += rest;
    if (on_text && !rest.empty()) on_text(rest);
  }
  if (chat_) note_answer(result.text);
  result.seconds = now_seconds() - start;
  result.kv = kv();
  return result;
}

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(std::shared_ptr<LoadedModel> model) : model_(std::move(model)) {
    summary_ = {model_->config.name,        std::string(model_->config.architecture->name),
                model_->config.context,     model_->config.vocabulary,
                model_->weights->bytes,     std::string(model_->kernels->name),
                model_->threads->threads(), std::string(model_->chat->name()),
                model_->chat->stands_in(),  model_->tokenizer->vocabulary().pre_tokenizer_assumed};
  }

  const ModelSummary& model() const override { return summary_; }

  Result<std::unique_ptr<Session>> new_session(const SessionOptions& options) override {
    return guarded([&] { return make_session(options); });
  }

 private:
  Result<std::unique_ptr<Session>> make_session(const SessionOptions& options) {
    std::unique_ptr<RetentionPolicy> policy;
    // Once: what is available changes while one looks.
    const std::uint64_t ceiling = cache_ != nullptr ? cache_->budget().capacity() : memory_ceiling();
    if (options.policy.empty()) {
      KVASIR_ASSIGN_OR_RETURN(policy, default_policy(ceiling));
    } else {
      KVASIR_ASSIGN_OR_RETURN(policy, make_policy(options.policy));
    }
    KVASIR_RETURN_IF_ERROR(check_positions(*policy, model_->options.chunk, model_->config.context));
    if (cache_ == nullptr) {
      KVASIR_ASSIGN_OR_RETURN(const std::uint64_t budget, budget_for(*policy, ceiling));
      KVASIR_ASSIGN_OR_RETURN(cache_, KvCache::create(model_->kv_shape, budget));
    } else if (policy->bound()) {
      if (const std::uint64_t needed = need(*policy, ceiling); needed > ceiling)
        return exhausted(
            "policy '{}' needs {} bytes of KV memory, but the engine's cache has {}, as its first session asked; set "
            "kv_memory (--kv-memory) to what all sessions need together",
            policy->spec(), needed, ceiling);
    }
    return {std::unique_ptr<Session>(new SessionImpl(model_, cache_, std::move(policy)))};
  }

  // A text without end: the plan of a bounded policy finds its period and needs no longer for it.
  static constexpr std::int64_t kEndless = std::int64_t{1} << 50;

  std::uint64_t need(const RetentionPolicy& policy, std::uint64_t ceiling) const {
    const std::int64_t tokens = policy.bound() ? kEndless : model_->config.context;
    const std::uint64_t least = least_kv_bytes(model_->kv_shape, policy.bound().value_or(tokens));
    // Enough to refuse what is far too large; the figure of a nearer miss is exact, so that it can be given back to us.
    if (least > ceiling && policy.bound().value_or(0) > kMostPlannedTokens) return least;
    return plan_kv_memory(model_->kv_shape, policy, {tokens, tokens, model_->options.chunk, 1}).bytes;
  }

  std::uint64_t memory_ceiling() const {
    const std::uint64_t available = available_memory();
    return model_->options.kv_memory > 0 ? std::min(model_->options.kv_memory, available) : available / 10 * 8;
  }

  // streaming with the smaller of the trained context and what the memory holds: equals `full` until that is reached.
  Result<std::unique_ptr<RetentionPolicy>> default_policy(std::uint64_t ceiling) const {
    static constexpr std::int64_t kSinks = 4;
    const auto with_cap = [](std::int64_t cap) {
      return make_policy(fmt::format("streaming:sinks={},window={}", kSinks, cap - kSinks));
    };
    const std::int64_t context = std::max<std::int64_t>(model_->config.context, kSinks + 1);
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> policy, with_cap(context));
    if (need(*policy, ceiling) <= ceiling) return policy;
    std::int64_t low = kSinks + 1;  // the least cap worth trying
    std::int64_t high = context;    // does not fit
    KVASIR_ASSIGN_OR_RETURN(policy, with_cap(low));
    if (need(*policy, ceiling) > ceiling)
      return exhausted(
          "{} bytes of KV memory hold no cache at all for this model (at least {} are needed with chunk={}); "
          "raise --kv-memory or lower --chunk",
          ceiling, need(*policy, ceiling), prompt_chunk(*policy, model_->options.chunk));
    // A pass in chunks needs a little more than what is kept: look close below what the bytes alone would hold, and
    // no closer than one token in 4,096.
    const auto columns = static_cast<std::int64_t>(ceiling / KvCache::column_cost(model_->kv_shape));
    const int slots = model_->kv_shape.page.slots;
    high = std::min(high, (columns + 1) * slots);
    bool close = true;
    while (high - low > 1 + high / 4096) {
      const std::int64_t near = high - prompt_chunk(*policy, model_->options.chunk) - 4 * slots;
      const std::int64_t middle = close && near > low ? near : low + (high - low) / 2;
      close = false;
      KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<RetentionPolicy> candidate, with_cap(middle));
      if (need(*candidate, ceiling) <= ceiling) {
        low = middle;
        policy = std::move(candidate);
      } else {
        high = middle;
      }
    }
    return policy;
  }

  Result<std::uint64_t> budget_for(const RetentionPolicy& policy, std::uint64_t ceiling) const {
    const std::uint64_t needed = need(policy, ceiling);
    if (model_->options.kv_memory > 0) {
      if (policy.bound() && needed > model_->options.kv_memory)
        return invalid_argument(
            "policy '{}' needs {} bytes of KV memory, --kv-memory gives {}; raise it, or lower the "
            "policy's size or --chunk",
            policy.spec(), needed, model_->options.kv_memory);
      return model_->options.kv_memory;
    }
    if (needed <= ceiling) return needed;
    // What keeps everything may still meet a short text: it ends with a visible reason when the memory is full.
    if (!policy.bound()) return ceiling;
    return exhausted(
        "policy '{}' needs {} bytes of KV memory, more than this machine can give ({}); choose a smaller "
        "policy, or bound it with --kv-memory",
        policy.spec(), needed, ceiling);
  }

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  ModelSummary summary_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd: return "end";
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kContext: return "context";
    case FinishReason::kKvMemory: return "kv_memory";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options,
                                             const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return guarded([&]() -> Result<std::unique_ptr<Engine>> {
    KVASIR_ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, load_model(options, progress));
    return {std::unique_ptr<Engine>(new EngineImpl(std::move(model)))};
  });
}

}  // namespace kvasir

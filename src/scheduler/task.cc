#include "scheduler/task.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "sequence/context_rules.h"

namespace kvasir {
namespace {

// Most rows of a pass with logits for all rows: a row of logits is as long as the vocabulary.
constexpr int kLogitRows = 32;
constexpr std::size_t kMostForced = 16;

}  // namespace

GenerateOptions with_seed(GenerateOptions options) {
  if (options.sampling.seed == 0) options.sampling.seed = std::random_device{}() | std::uint64_t{1} << 32;
  return options;
}

Status check_seeds(std::uint64_t seed, int samples) {
  const std::uint64_t most = ~std::uint64_t{0} - static_cast<std::uint64_t>(samples - 1);
  if (seed <= most) return {};
  return invalid_argument("seed={} is too large for {} samples, of which sample i has seed + i; give {} or less", seed,
                          samples, most)
      .about({"seed", "samples"});
}

Status check_draft(std::string_view draft, bool has_model) {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<DraftOptions> options, parse_draft(draft));
  if (options && options->model && !has_model)
    return invalid_argument(
               "draft '{}': no draft model is loaded; name the file of a small one with --draft (run) or --draft-model "
               "(serve)",
               draft)
        .about({"draft"});
  return options && !options->policy.empty() ? parse_draft_view(options->policy).status() : Status();
}

Task::Task(TextState* text, std::vector<TokenId> prompt, std::optional<Generation> generation)
    : text_(text),
      replayable_(text->sequence == nullptr),
      tokens_(std::move(prompt)),
      prompt_(tokens_.size()),
      generation_(std::move(generation)) {}

bool Task::prepare() {
  if (status_.ok() && text_->sequence != nullptr && !text_->sequence->status().ok()) fail(text_->sequence->status());
  if (!status_.ok() || (generation_ && generation_->finished())) return false;
  const bool repeats = left_to_repeat() > 0;
  if (run_ < tokens_.size()) {
    if (repeats || text_->sequence == nullptr || run_ >= prompt_ || text_->sequence->in_chunk()) return true;
    const Sequence& sequence = *text_->sequence;
    const auto rest = static_cast<std::int64_t>(prompt_ - run_);
    status_ =
        check_room(sequence.policy(), context_place(sequence.tables()), rest,
                   std::min<std::int64_t>(rest, prompt_chunk(sequence.policy(), text_->chunk)), sequence.context());
    return status_.ok();
  }
  if (repeats || !generation_) return repeats;
  if (!generation_->pending()) {
    Result<std::optional<TokenId>> token = generation_->push(text_->logits);
    if (!token.ok()) status_ = token.status();
    if (!token.ok() || !*token) return false;
    next_ = **token;
  }
  if (context_left(*text_->sequence) < 1) {
    generation_->finish(FinishReason::kContext);
    return false;
  }
  draft();
  return true;
}

void Task::draft() {
  Drafting* const drafting = generation_->drafting();
  if (drafting == nullptr || !pass_.empty() || !drafting->refused().empty()) return;
  const Sequence& sequence = *text_->sequence;
  const std::string_view refused = watch_ != nullptr                     ? "the text promises quality"
                                   : !drafting->options().policy.empty() ? sequence.drafting_refused()
                                                                         : sequence.drafts_refused();
  if (!refused.empty()) return drafting->refuse(refused);
  const std::int64_t left = std::min(context_left(sequence), generation_->tokens_left()) - 1;
  const int most = sequence.most_drafts(static_cast<int>(std::min<std::int64_t>(left, kMostDrafts)));
  pass_ = {next_};
  if (most == 0) return;
  if (drafting->options().run()) return want_drafts(most);
  std::vector<TokenId> drafts =
      drafting->draft(replayable_ ? std::span<const TokenId>(tokens_) : std::span<const TokenId>(text_->newest), next_);
  drafts.resize(std::min(drafts.size(), static_cast<std::size_t>(most)));
  drafts.resize(generation_->allowed_by_grammar(drafts));
  pass_.insert(pass_.end(), drafts.begin(), drafts.end());
}

void Task::want_drafts(int most) {
  Drafting& drafting = *generation_->drafting();
  if (drafting.options().model) {
    wanted_ = std::min(drafting.wanted(), most);
    return;
  }
  if (!view_) {
    const Result<DraftView> view = parse_draft_view(drafting.options().policy);
    if (!view.ok()) return drafting.refuse("draft names no policy that the model can draft under");
    view_ = *view;
  }
  if (text_->sequence->tables().next_index() <= view_->tokens())
    return drafting.excuse("the view of the drafts held the whole text");
  // Asked before a pause is shortened.
  if (!text_->sequence->may_draft(*view_, most)) return;
  wanted_ = std::min(drafting.wanted(), most);
}

void Task::want_no_drafts() {
  wanted_ = 0;
  lookahead_.reset();
}

Sequence::Input Task::drafting_input() const {
  Sequence::Input input;
  input.rest = std::span(pass_).last(1);
  input.source = Source::kGenerated;
  input.view = view_;
  return input;
}

DraftText& Task::follow_draft(const std::shared_ptr<DraftModel>& model) {
  if (text_->draft == nullptr) text_->draft = std::make_unique<DraftText>(model);
  text_->draft->follow(text_->newest, text_->sequence->tables().next_index(), next_);
  return *text_->draft;
}

void Task::settle_draft() {
  // While known tokens run again, the newest ones are not yet those of the sequence.
  if (text_->draft != nullptr && run_ == tokens_.size() && text_->sequence != nullptr && text_->sequence->status().ok())
    text_->draft->settle(text_->newest, text_->sequence->tables().next_index());
}

bool Task::take_draft(const StepResult& result) {
  if (!result.status.ok()) return false;
  if (!lookahead_) lookahead_ = generation_->lookahead();
  lookahead_->accept(pass_.back());
  const Result<std::optional<TokenId>> token = lookahead_->push(result.logits);
  if (!token.ok() || !*token) return false;
  pass_.push_back(**token);
  return std::ssize(pass_) <= wanted_;
}

void Task::end_drafting() {
  want_no_drafts();
  if (text_->sequence != nullptr && text_->sequence->status().ok()) text_->sequence->take_back_drafting();
}

void Task::note_seconds(double seconds, double drafting) {
  Drafting* const drafts = generation_ ? generation_->drafting() : nullptr;
  if (drafts != nullptr && gave_ > 0) drafts->note_seconds(seconds + (drafted_ ? drafting : 0), gave_, drafted_);
}

int Task::judge(const StepResult& result) {
  const std::size_t vocabulary = result.logits.size() / static_cast<std::size_t>(result.rows);
  try {
    for (judged_ = 0;;) {
      fresh_ += generation_->accept(pass_[static_cast<std::size_t>(judged_)]);
      if (++judged_ == result.rows || generation_->finished()) break;
      const Result<std::optional<TokenId>> token =
          generation_->push(result.logits.subspan(static_cast<std::size_t>(judged_ - 1) * vocabulary, vocabulary));
      if (!token.ok()) status_ = token.status();
      if (!token.ok() || !*token) break;
      next_ = **token;
      if (next_ != pass_[static_cast<std::size_t>(judged_)]) break;
    }
  } catch (const std::exception&) {
    status_ = exhausted("the system refused memory for a pass of drafts; begin it again");
    judged_ = std::max(judged_, 1);
  }
  generation_->drafting()->note(result.rows - 1, judged_ - 1);
  return judged_;
}

void Task::take_judged(const StepResult& result) {
  const std::span<const TokenId> stay = std::span(pass_).first(static_cast<std::size_t>(judged_));
  note_newest(stay);
  if (replayable_) {
    tokens_.insert(tokens_.end(), stay.begin(), stay.end());
    noted_ = run_ = tokens_.size();
  }
  take_logits(result);
  if (!generation_->pending()) next_ = kNoToken;
  pass_.clear();
  judged_ = 0;
  want_no_drafts();
}

std::int64_t Task::left_to_repeat() const {
  const bool runs = text_->sequence != nullptr && text_->sequence->status().ok();
  return runs ? text_->sequence->rows_to_repeat() : 0;
}

std::int64_t Task::repeated() const {
  return text_->sequence != nullptr ? text_->sequence->repeated_rows() : 0;
}

bool Task::reads() const {
  return reads_text() || left_to_repeat() > 0;
}

bool Task::reads_text() const {
  // In replay, chunks change nothing if ranges are dropped and all rows read alike.
  return run_ < prompt_ ||
         (run_ < tokens_.size() && text_->sequence != nullptr && !text_->sequence->policy().by_token());
}

int Task::chunk() const {
  if (run_ < prompt_ || !reads_text() || text_->sequence == nullptr) return text_->chunk;
  const KvCacheShape& shape = text_->sequence->shape();
  if (!text_->sequence->policy().bound() && shape.window == 0 && shape.windows.empty()) return text_->chunk;
  // A chunk holds what its first row sees until its last row is done. If it ends with its page, it needs no more pages
  // than single tokens would, which is what was planned for generated tokens.
  return std::min(prompt_chunk(text_->sequence->policy(), text_->chunk), text_->sequence->shape().page.slots);
}

// Whether the next pass runs tokens behind which the next token is already known.
bool Task::replays() const {
  return run_ < tokens_.size() && forced_ == 0 && generation_ && (generation_->pending() || tokens_.size() > prompt_);
}

Sequence::Input Task::input(int most_rows) const {
  Sequence::Input input;
  input.chunk = chunk();
  input.most_rows = most_rows;
  input.source = reads_text() ? Source::kPrompt : Source::kGenerated;
  if (run_ == tokens_.size()) {
    input.rest = {&next_, 1};
    if (const int most = std::min(drafts() + 1, most_rows); most > 1) {
      input.rest = std::span(pass_).first(static_cast<std::size_t>(most));
      input.drafts = most - 1;
      input.logits = Logits::kAll;
    }
    return input;
  }
  const bool pauses = run_ < pause_ && pause_ < prompt_ && !reports_prompt();
  std::size_t end = pauses ? pause_ : run_ < prompt_ ? prompt_ : tokens_.size();
  if (dropped_ && !dropped_->done && run_ >= prompt_) end = std::min(end, dropped_->at);
  if (pauses || replays()) input.logits = Logits::kNone;
  if (watch_ != nullptr) {
    const std::optional<std::int64_t> wanted = watch_->next(tokens_run());
    if (wanted && static_cast<std::size_t>(*wanted) < end) {
      end = static_cast<std::size_t>(*wanted) + 1;
      input.logits = Logits::kLast;
    }
  }
  input.rest = std::span(tokens_).subspan(run_, end - run_);
  if (run_ < prompt_ && reports_prompt()) {
    input.logits = Logits::kAll;
    input.most_rows = std::min(most_rows, kLogitRows);
  }
  input.hidden = run_ < prompt_ && pooling_ != Pooling::kNone;
  return input;
}

void Task::take(const StepResult& result) {
  drafted_ = judged_ > 0;
  gave_ = 0;
  if (!result.status.ok()) {
    fail(result.status);
    return;
  }
  if (result.tokens == 0) return;  // the text was repeated
  if (judged_ > 0) {
    gave_ = judged_;
    return take_judged(result);
  }
  const bool generated = run_ == tokens_.size();
  if (generated) gave_ = 1;
  const bool replayed = replays();
  if (generated && !replayable_) {
    note_newest({&next_, 1});
  } else {
    if (generated) tokens_.push_back(next_);
    run_ += static_cast<std::size_t>(result.tokens);
    if (reports_prompt()) note_prompt(result);
    if (!result.hidden.empty()) pool(result);
    if (run_ > noted_) note_newest(std::span(tokens_).subspan(noted_, run_ - noted_));
    noted_ = std::max(noted_, run_);
  }
  if (watch_ != nullptr && !result.logits.empty()) tell_watch(result);
  if (!result.logits.empty() && !replayed) take_logits(result);
  if (generated) {
    fresh_ += generation_->accept(std::exchange(next_, kNoToken));
    pass_.clear();
    want_no_drafts();
  }
  for (; forced_ > 0 && run_ + forced_ > tokens_.size(); --forced_) {
    const TokenId token = tokens_[tokens_.size() - forced_];
    generation_->force(token);
    fresh_ += generation_->accept(token);
  }
  drop_thoughts();
}

// Drops the thoughts of the answer when they have closed, and in replay after the same token.
void Task::drop_thoughts() {
  if (!replayable_ || !generation_ || text_->sequence == nullptr || !text_->sequence->status().ok()) return;
  if (text_->sequence->policy().as<DropsThoughts>() == nullptr) return;
  if (const auto closed = generation_->closed_thoughts(); closed && !dropped_) {
    const auto prompt = static_cast<TokenIndex>(prompt_);
    // Behind the forced tokens, of which the rest may be part of the chunk under way.
    dropped_ = {tokens_.size(), {prompt + closed->begin, prompt + closed->end}, false};
  }
  if (!dropped_ || dropped_->done || run_ != dropped_->at) return;
  KVASIR_CHECK(run_ >= prompt_ && !text_->sequence->in_chunk());
  text_->sequence->drop_thoughts(dropped_->thoughts);
  dropped_->done = true;
}

void Task::add_forced() {
  if (!replayable_ || watch_ != nullptr || !generation_ || !generation_->has_grammar() || generation_->finished() ||
      generation_->pending() || !status_.ok())
    return;
  if (text_->sequence == nullptr || !text_->sequence->status().ok() || text_->sequence->policy().by_token()) return;
  if (run_ < tokens_.size() || run_ <= prompt_) return;
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(context_left(*text_->sequence), 0));
  const std::vector<TokenId> forced = generation_->forced(std::min(room, kMostForced));
  tokens_.insert(tokens_.end(), forced.begin(), forced.end());
  forced_ = forced.size();
}

void Task::tell_watch(const StepResult& result) {
  const std::size_t vocabulary = result.logits.size() / static_cast<std::size_t>(result.rows);
  const std::int64_t first = tokens_run() - result.rows;
  for (int row = 0; row < result.rows; ++row)
    if (watch_->next(first + row) == first + row)
      watch_->take(first + row, result.logits.subspan(static_cast<std::size_t>(row) * vocabulary, vocabulary));
}

// Each row's logits predict the next token. Rows that ran again after release() were reported before.
void Task::note_prompt(const StepResult& result) {
  const std::size_t vocabulary = result.logits.size() / static_cast<std::size_t>(std::max(result.rows, 1));
  const std::size_t first = run_ - static_cast<std::size_t>(result.rows);  // index of the first row's token
  for (std::size_t row = 0; row < static_cast<std::size_t>(result.rows); ++row) {
    const std::size_t token = first + row + 1;
    if (token >= prompt_ || token != prompt_choices_.size() + 1) continue;
    prompt_choices_.push_back(
        generation_->describe(result.logits.subspan(row * vocabulary, vocabulary), tokens_[token], prompt_logprobs_));
  }
}

// Sums in the order of tokens, whatever passes they ran in. Rows that ran again after release() are in the sum.
void Task::pool(const StepResult& result) {
  const auto rows = static_cast<std::size_t>(result.tokens);
  const std::size_t width = result.hidden.size() / rows;
  pooled_.resize(width);
  for (std::size_t row = 0; row < rows; ++row) {
    if (run_ - rows + row < pooled_tokens_) continue;
    const std::span<const float> hidden = result.hidden.subspan(row * width, width);
    for (std::size_t i = 0; i < width; ++i) pooled_[i] = hidden[i] + (pooling_ == Pooling::kMean ? pooled_[i] : 0);
    ++pooled_tokens_;
  }
}

std::vector<float> Task::pooled() const {
  const double divisor = pooling_ == Pooling::kMean ? static_cast<double>(std::max<std::size_t>(pooled_tokens_, 1)) : 1;
  std::vector<float> vector(pooled_.size());
  std::ranges::transform(pooled_, vector.begin(), [&](double sum) { return static_cast<float>(sum / divisor); });
  return vector;
}

void Task::fail(Status status) {
  status_ = std::move(status);
  text_->logits.clear();  // they do not belong to the newest token
}

void Task::note_newest(std::span<const TokenId> tokens) {
  std::vector<TokenId>& newest = text_->newest;
  constexpr std::size_t kHistory = kMaxPenaltyWindow;
  newest.insert(newest.end(), tokens.begin(), tokens.end());
  if (newest.size() >= 2 * kHistory) newest.erase(newest.begin(), newest.end() - static_cast<std::ptrdiff_t>(kHistory));
}

void Task::take_logits(const StepResult& result) {
  const auto newest = result.logits.last(result.logits.size() / static_cast<std::size_t>(result.rows));
  text_->logits.assign(newest.begin(), newest.end());
}

std::string Task::take_text() {
  return std::exchange(fresh_, {});
}

void Task::release() {
  KVASIR_CHECK(replayable_);
  text_->sequence.reset();
  run_ = 0;
  want_no_drafts();
  if (dropped_) dropped_->done = false;
}

void Task::skip(std::int64_t count) {
  KVASIR_CHECK(run_ == 0 && count < std::ssize(tokens_));
  run_ = static_cast<std::size_t>(count);
  if (run_ > noted_) note_newest(std::span(tokens_).subspan(noted_, run_ - noted_));
  noted_ = std::max(noted_, run_);
}

Task Task::fork(TextState* text, std::size_t sample, std::uint64_t seed) const {
  Task copy = *this;
  copy.text_ = text;
  copy.generation_->become(sample, seed);
  if (text->sequence == nullptr) {
    copy.run_ = 0;
    if (copy.dropped_) copy.dropped_->done = false;
  }
  return copy;
}

}  // namespace kvasir

#include "requests/request.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "requests/request_group.h"

namespace kvasir {

std::string_view request_state_name(RequestState state) {
  switch (state) {
    case RequestState::kWaiting: return "waiting";
    case RequestState::kFetching: return "fetching";
    case RequestState::kRunning: return "running";
    case RequestState::kSwappingOut: return "swapping out";
    case RequestState::kSwapped: return "swapped";
    case RequestState::kSwappingIn: return "swapping in";
    case RequestState::kEnded: return "ended";
  }
  return "unknown";
}

std::int64_t RequestProgress::note_run(std::int64_t tokens) {
  const std::int64_t again = std::max<std::int64_t>(std::min(tokens, most_run) - run, 0);
  recomputed += again;
  run = tokens;
  most_run = std::max(most_run, tokens);
  return again;
}

Request::Request(RequestGroup* group, int sample, TextState begin)
    : group_(group), sample_(sample), text_(std::move(begin)) {
  KVASIR_CHECK(text_.sequence == nullptr);
}

void Request::set_task(std::vector<TokenId> prompt, Generation generation) {
  KVASIR_CHECK(!task_ && state_ == RequestState::kWaiting);
  task_.emplace(&text_, std::move(prompt), std::move(generation));
}

std::unique_ptr<Request> Request::fork(int sample, std::unique_ptr<Sequence> sequence) const {
  TextState begin;
  begin.newest = text_.newest;
  begin.logits = text_.logits;
  begin.chunk = text_.chunk;
  auto copy = std::make_unique<Request>(group_, sample, std::move(begin));
  if (sequence != nullptr) copy->start(std::move(sequence));
  const auto number = static_cast<std::size_t>(sample);
  copy->task_.emplace(task_->fork(&copy->text_, number, group_->seed + number));
  copy->progress.run = copy->progress.most_run = copy->holds_pages() ? progress.run : 0;
  copy->bytes.released = bytes.released;
  return copy;
}

PrefixText Request::prefix_text() const {
  return {task_->tokens(), task_->prompt_tokens(), group_->policy.get(), text_.chunk, group_->prefix.lasting};
}

PrefixText Request::start_text() const {
  PrefixText text = prefix_text();
  const RowWatch* watch = task_->watch();
  const std::optional<std::int64_t> wanted = watch != nullptr ? watch->next(0) : std::nullopt;
  if (wanted) text.tokens = text.tokens.first(std::min(text.tokens.size(), static_cast<std::size_t>(*wanted) + 1));
  text.prompt = std::min(text.prompt, std::ssize(text.tokens));
  return text;
}

void Request::begin_fetch(std::shared_ptr<PrefixFetch> fetch) {
  KVASIR_CHECK(state_ == RequestState::kWaiting && fetch != nullptr);
  fetch_ = std::move(fetch);
  state_ = RequestState::kFetching;
}

void Request::end_fetch() {
  KVASIR_CHECK(state_ == RequestState::kFetching);
  fetch_.reset();
  state_ = RequestState::kWaiting;
}

void Request::start(std::unique_ptr<Sequence> sequence, SessionPages pages) {
  KVASIR_CHECK(state_ == RequestState::kWaiting && sequence != nullptr);
  text_.sequence = std::move(sequence);
  pages_ = std::move(pages);
  state_ = RequestState::kRunning;
}

void Request::release() {
  KVASIR_CHECK(state_ == RequestState::kRunning || state_ == RequestState::kSwappingOut ||
               state_ == RequestState::kSwapped || state_ == RequestState::kSwappingIn);
  swap_.reset();  // it may read the sequence's pages
  pages_ = {};
  task_->release();
  if (quality != nullptr) quality->note_released();
  progress.run = 0;
  state_ = RequestState::kWaiting;
}

void Request::begin_swap_out(std::unique_ptr<SwappedSequence> swap) {
  KVASIR_CHECK(state_ == RequestState::kRunning && swap != nullptr);
  swap_ = std::move(swap);
  state_ = RequestState::kSwappingOut;
}

void Request::end_swap_out() {
  KVASIR_CHECK(state_ == RequestState::kSwappingOut);
  text_.sequence.reset();
  state_ = RequestState::kSwapped;
}

void Request::begin_swap_in(std::unique_ptr<Sequence> sequence) {
  KVASIR_CHECK(state_ == RequestState::kSwapped && sequence != nullptr);
  text_.sequence = std::move(sequence);
  state_ = RequestState::kSwappingIn;
}

void Request::end_swap_in() {
  KVASIR_CHECK(state_ == RequestState::kSwappingIn);
  swap_.reset();
  state_ = RequestState::kRunning;
}

void Request::cancel_swap_in() {
  KVASIR_CHECK(state_ == RequestState::kSwappingIn);
  swap_->turn_back();
  text_.sequence.reset();
  state_ = RequestState::kSwapped;
}

TextState Request::end() {
  KVASIR_CHECK(state_ != RequestState::kSwappingIn && state_ != RequestState::kEnded);
  swap_.reset();  // it may read the sequence's pages
  fetch_.reset();
  pages_ = {};
  if (quality != nullptr) quality->note_released();
  state_ = RequestState::kEnded;
  return std::move(text_);  // the chunk stays: prefix_text() needs it
}

}  // namespace kvasir

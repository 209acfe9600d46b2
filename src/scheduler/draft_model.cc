#include "scheduler/draft_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "retention/registry.h"

namespace kvasir {

std::unique_ptr<RetentionPolicy> draft_policy(std::int64_t context) {
  constexpr std::int64_t kLeastCap = 5;  // sinks and a window
  PolicySpec spec = PolicySpec::named("streaming");
  spec.parts.front().set("cap", std::clamp(context, kLeastCap, kMostDraftTokens));
  return std::move(*make_policy(spec));
}

KvMemory plan_draft_texts(const KvCacheShape& shape, std::int64_t context, std::int64_t tokens, int texts) {
  tokens = std::min(tokens, kMostDraftTokens + kDraftRows + shape.page.slots);
  return plan_kv_memory(shape, *draft_policy(context), {tokens, tokens, kDraftRows, texts});
}

DraftModel::DraftModel(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache)
    : model_(std::move(model)), cache_(std::move(cache)), step_(model_, cache_) {
  const std::unique_ptr<RetentionPolicy> policy = draft_policy(model_->config.context);
  const std::int64_t sinks = policy->traits().sinks;
  view_ = {sinks, *policy->bound() - sinks};
  cache_->budget().set_first_reclaimer([this] { return give_back(); });
}

DraftModel::~DraftModel() {
  cache_->budget().set_first_reclaimer({});
}

std::shared_ptr<DraftModel> DraftModel::create(std::shared_ptr<LoadedModel> model,
                                               const std::shared_ptr<KvCache>& cache) {
  Result<std::shared_ptr<KvCache>> own = new_cache_within(model, cache);
  if (!own.ok()) return nullptr;
  return std::shared_ptr<DraftModel>(new DraftModel(std::move(model), std::move(*own)));
}

bool DraftModel::run(std::span<const StepRequest> requests, std::span<StepResult> results) {
  const Step::Plan plan = step_.plan(requests);
  if (!plan.status.ok() || !plan.fits) return false;
  struct Running {
    explicit Running(bool* is_running) : flag(is_running) { *flag = true; }
    ~Running() { *flag = false; }
    bool* flag;
  };
  const Running now(&running_);
  return step_.run(plan, requests, results).ok();
}

void DraftModel::drop_all() {
  while (give_back()) {
  }
}

std::uint64_t DraftModel::bytes() const {
  std::uint64_t bytes = 0;
  for (const DraftText* text : texts_) bytes += text->bytes();
  return bytes;
}

bool DraftModel::give_back() {
  if (running_) return false;
  const auto oldest = std::ranges::find_if(texts_, [](const DraftText* text) { return text->sequence_ != nullptr; });
  if (oldest == texts_.end()) return false;
  (*oldest)->drop();
  return true;
}

DraftText::DraftText(std::shared_ptr<DraftModel> model) : model_(std::move(model)) {
  model_->texts_.push_back(this);
}

DraftText::~DraftText() {
  std::erase(model_->texts_, this);
}

void DraftText::drop() {
  sequence_.reset();
  unread_.clear();
  ahead_.clear();
}

void DraftText::settle(std::span<const TokenId> newest, std::int64_t total) {
  if (sequence_ == nullptr) return;
  const std::int64_t known = total - std::ssize(newest);  // index of the first of them
  const auto at = [&](std::int64_t index) { return newest[static_cast<std::size_t>(index - known)]; };
  if (!sequence_->status().ok() || settled_ > total || settled_ <= known || at(settled_ - 1) != newest_) return drop();
  std::size_t stay = 0;
  while (stay < ahead_.size() && settled_ < total && at(settled_) == ahead_[stay]) {
    newest_ = ahead_[stay++];
    ++settled_;
  }
  sequence_->take_back_drafting(static_cast<int>(stay));
  ahead_.clear();
}

void DraftText::follow(std::span<const TokenId> newest, std::int64_t total, TokenId next) {
  settle(newest, total);
  std::rotate(std::ranges::find(model_->texts_, this), std::ranges::find(model_->texts_, this) + 1,
              model_->texts_.end());
  const std::int64_t most = model_->view_.tokens();
  const std::int64_t known = total - std::ssize(newest);
  if (sequence_ != nullptr && total + 1 - settled_ > most) drop();
  if (sequence_ == nullptr) {
    sequence_ =
        std::make_unique<Sequence>(model_->model_, model_->cache_, draft_policy(model_->model_->config.context));
    // What it would have dropped by then is not read.
    settled_ = std::max(known, total + 1 - most);
    newest_ = kNoToken;
  }
  const auto from = newest.subspan(static_cast<std::size_t>(settled_ - known));
  unread_.assign(from.begin(), from.end());
  unread_.push_back(next);
}

Sequence::Input DraftText::reading(int most_rows) const {
  Sequence::Input input;
  input.rest = unread_;
  input.chunk = kDraftRows;
  input.most_rows = most_rows;
  return input;
}

void DraftText::note_read(int tokens) {
  settled_ += tokens;
  newest_ = unread_[static_cast<std::size_t>(tokens - 1)];
  unread_.erase(unread_.begin(), unread_.begin() + tokens);
}

Sequence::Input DraftText::drafting(const TokenId& draft) const {
  Sequence::Input input;
  input.rest = {&draft, 1};
  input.source = Source::kGenerated;
  input.view = model_->view_;
  return input;
}

}  // namespace kvasir

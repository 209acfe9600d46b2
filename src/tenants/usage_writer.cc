#include "tenants/usage_writer.h"

#include <fmt/core.h>

#include <ctime>
#include <iterator>
#include <new>
#include <utility>

#include "base/counted.h"
#include "base/status.h"

namespace kvasir::tenants {
namespace {

constexpr std::int64_t kHourSeconds = 3600;
constexpr std::int64_t kDaySeconds = 24 * kHourSeconds;

}  // namespace

UsageWriter::UsageWriter(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

UsageWriter::~UsageWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::int64_t UsageWriter::now() const {
  return options_.now ? options_.now() : std::int64_t{std::time(nullptr)};
}

void UsageWriter::add(const std::string& tenant, const UsageFigures& figures) {
  const std::int64_t time = now();
  const std::lock_guard lock(mutex_);
  pending_[{time - time % kHourSeconds, tenant}].add(figures);
}

Status UsageWriter::ask(UsageQuery query, Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    if (questions_.size() >= options_.questions)
      return exhausted("{} questions for usage are waiting already; try again later", options_.questions);
    questions_.push_back({std::move(query), std::move(answer)});
  }
  wake_.notify_all();
  return {};
}

void UsageWriter::run() {
  for (bool last = false; !last;) {
    std::deque<Question> questions;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, options_.period, [&] { return stopping_ || !questions_.empty(); });
      last = stopping_;
      questions.swap(questions_);
    }
    try {
      const Status status = write();
      tell(status);
      for (; !questions.empty(); questions.pop_front()) {
        const Question& question = questions.front();
        question.answer(status.ok() ? store_->read(question.query) : Result<std::vector<UsageRow>>(status));
      }
    } catch (const std::bad_alloc&) {  // questions are answered after another pause
      const std::lock_guard lock(mutex_);
      questions_.insert(questions_.begin(), std::make_move_iterator(questions.begin()),
                        std::make_move_iterator(questions.end()));
    }
  }
  if (const std::lock_guard lock(mutex_); !pending_.empty() && options_.log) {
    std::int64_t requests = 0;
    for (const auto& [key, figures] : pending_) requests += figures.requests;
    options_.log(fmt::format("the usage of {} is lost: it could not be written", counted(requests, "request")));
  }
}

// Makes the store ready and writes the pending figures.
Status UsageWriter::write() {
  KVASIR_RETURN_IF_ERROR(ready_store());
  UsageBatch batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(pending_);
  }
  Status added;
  try {
    added = store_->add(batch);
  } catch (const std::bad_alloc&) {
    put_back(std::move(batch));
    throw;
  }
  if (!added.ok()) {
    put_back(std::move(batch));
    store_.reset();  // reopened next time, when the problem may be over
    return added;
  }
  const std::int64_t day = now() / kDaySeconds;
  if (day == rolled_up_) return {};
  KVASIR_RETURN_IF_ERROR(store_->roll_up(now()));
  rolled_up_ = day;
  return {};
}

Status UsageWriter::ready_store() {
  if (store_ != nullptr && store_->is_replaced()) store_.reset();
  if (store_ != nullptr) return {};
  KVASIR_ASSIGN_OR_RETURN(store_, UsageStore::open(options_.path, UsageStore::Access::kWrite));
  return {};
}

void UsageWriter::put_back(UsageBatch batch) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, figures] : batch) pending_[key].add(figures);
}

void UsageWriter::tell(const Status& status) {
  bool drops = false;
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    while (pending_.size() > options_.pending) {
      pending_.erase(pending_.begin());  // the oldest hour
      drops = true;
    }
  }
  const std::string& problem = status.message();
  if (options_.log && drops && !lost_) options_.log("too much usage waits to be written: the oldest hours are dropped");
  if (options_.log && problem != problem_) {
    options_.log(problem.empty()
                     ? "usage is written again"
                     : fmt::format("usage is not written; the server goes on, and tries again: {}", problem));
  }
  lost_ = drops || (lost_ && !status.ok());
  problem_ = problem;
}

}  // namespace kvasir::tenants

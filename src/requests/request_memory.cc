#include "requests/request_memory.h"

#include <algorithm>
#include <utility>

#include "requests/request_group.h"
#include "sequence/kv_report.h"

namespace kvasir {
namespace {

// Returns the bytes of the pages of so many whole columns, in all lanes.
std::uint64_t bytes_of_columns(const KvCacheShape& shape, std::int64_t columns) {
  return static_cast<std::uint64_t>(columns * shape.lanes()) * (shape.page.bytes() + PagePool::kPageOverhead);
}

// Returns how many of the first columns of two texts are the same pages. REQUIRES: neither has dropped tokens.
std::int64_t common_columns(const Sequence& a, const Sequence& b) {
  const auto same = [&](std::int64_t column) {
    return a.tables().table(0).tokens().pages_of_whole(column).front() ==
           b.tables().table(0).tokens().pages_of_whole(column).front();
  };
  std::int64_t common = 0;
  std::int64_t most = std::min(a.tables().whole_columns(), b.tables().whole_columns());
  if (most == 0 || !same(0)) return 0;
  while (common < most) {
    const std::int64_t middle = common + (most - common) / 2;
    if (same(middle)) {
      common = middle + 1;
    } else {
      most = middle;
    }
  }
  return common;
}

// Returns one text's part of the columns that it shares: each column is divided among all that share it. `sharers`: for
// each other text, the number of its first columns that it shares.
std::uint64_t divided_bytes(const KvCacheShape& shape, std::vector<std::int64_t> sharers) {
  std::ranges::sort(sharers);
  std::uint64_t bytes = 0;
  std::int64_t from = 0;
  for (std::size_t i = 0; i < sharers.size(); ++i) {
    bytes += bytes_of_columns(shape, sharers[i] - from) / (sharers.size() - i + 1);
    from = sharers[i];
  }
  return bytes;
}

}  // namespace

RequestMemory::RequestMemory(std::shared_ptr<BatchRunner> runner, const RequestPrefixes* prefixes)
    : runner_(std::move(runner)), prefixes_(prefixes) {}

std::uint64_t RequestMemory::available() const {
  return runner_->cache()->budget().available() + prefixes_->evictable_bytes() + runner_->draft_bytes();
}

std::uint64_t RequestMemory::estimate(const Request& request) const {
  const RequestGroup& group = request.group();
  // The peak counts a shadow, which while it is there counts by itself.
  if (request.is_held()) return group.peak - std::min(group.peak, request.quality->shadow()->group().peak);
  if (request.sample() > 0 || std::ssize(group.requests) == group.samples) {
    // Samples share pages that they never write again.
    const std::uint64_t shared = group.samples > 1 ? group.shared_peak : 0;
    return group.peak - shared + shared / static_cast<std::uint64_t>(group.samples);
  }
  std::uint64_t all = 0;
  const auto others = static_cast<std::uint64_t>(group.samples - 1);
  const bool huge = __builtin_mul_overflow(group.peak - group.shared_peak, others, &all) ||
                    __builtin_add_overflow(all, group.peak, &all);
  return huge ? ~std::uint64_t{0} : all;
}

std::uint64_t RequestMemory::used(const Request& request) const {
  const Sequence& sequence = *request.sequence();
  const RequestGroup& group = request.group();
  const std::uint64_t rows = request.quality != nullptr ? request.quality->meter().held_bytes() : 0;
  const std::uint64_t all = sequence.bytes() + rows;
  const SessionBase* base = group.session.base;
  if (group.samples == 1 && (base == nullptr || base->stored())) return all;
  const std::uint64_t alone = sequence.own_page_bytes() + sequence.own_bytes_beside_pages();
  if (base != nullptr) return alone;
  const auto sharing = std::ranges::count_if(group.requests, [](const auto& other) { return other->holds_pages(); });
  return alone + (all - std::min(alone, all)) / static_cast<std::uint64_t>(sharing);
}

std::uint64_t RequestMemory::freed_by_preemption(const Request& request) const {
  const bool frees_rows = request.quality != nullptr && !request.is_held();
  return bytes_freed_without(*request.sequence(), prefixes_->owner()) +
         (frees_rows ? request.quality->meter().held_bytes() : 0);
}

std::uint64_t RequestMemory::next_rows(Request& request, int rows) const {
  return runner_->plan(Turn{&request.task(), rows}).bytes;
}

std::uint64_t RequestMemory::copies_for_prefixes(Request& request, int rows) const {
  std::uint64_t copies = 0;
  for (const Sequence::PassPlan& pass : runner_->plan(Turn{&request.task(), rows}).passes) copies += pass.reserve;
  if (copies == 0 || !prefixes_->enabled()) return 0;
  return std::min(copies, freed_by_preemption(request) - bytes_freed_without(*request.sequence()));
}

std::uint64_t RequestMemory::shared_prefix(const Request& request, std::span<Request* const> all) const {
  if (request.prefix.found == 0) return 0;
  const KvCacheShape& shape = request.group().shape;
  const std::int64_t columns = request.prefix.found / shape.page.slots;
  const bool in_use = std::ranges::any_of(all, [&](const Request* other) {
    return other->holds_pages() && other->sequence()->tables().whole_columns() >= columns &&
           prefixes_->will_find(request, *other) >= request.prefix.found;
  });
  return in_use ? bytes_of_columns(shape, columns) : 0;
}

void RequestMemory::divide_shared(std::span<Request* const> all, std::vector<ScheduleTask>& tasks) {
  const auto shares = [&](std::size_t i) {
    return tasks[i].holds && tasks[i].tenant >= 0 && all[i]->group().samples == 1;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!shares(i)) continue;
    std::vector<std::int64_t> sharers;
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (j == i || !shares(j) || tasks[j].tenant != tasks[i].tenant) continue;
      const std::int64_t columns = common_columns(*all[i]->sequence(), *all[j]->sequence());
      if (columns > 0) sharers.push_back(columns);
    }
    if (sharers.empty()) continue;
    const KvCacheShape& shape = all[i]->group().shape;
    const std::uint64_t whole = bytes_of_columns(shape, std::ranges::max(sharers));
    tasks[i].used -= std::min(tasks[i].used, whole - divided_bytes(shape, std::move(sharers)));
  }
}

KvReport RequestMemory::report(const Request& request) const {
  const RequestGroup& group = request.group();
  const auto& released = request.bytes.released;
  if (request.holds_pages()) {
    KvReport now = kv_report(*request.sequence());
    return released && released->seen > now.seen ? *released : now;
  }
  if (released) return *released;
  if (group.session.base != nullptr) return kv_report(*group.session.base->held().sequence);
  // A report of zeros: it never held anything.
  return kv_report(Sequence(runner_->model(), runner_->cache(), group.policy->clone(), group.shape.codec()));
}

}  // namespace kvasir

#include "scheduler/schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvasir {
namespace {

// More than any memory, and small enough for sums of many.
constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 52;

std::int64_t bytes_of(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min(bytes, kMostCounted));
}

std::int64_t share_of(std::int64_t bytes, double share) {
  return std::llround(static_cast<double>(bytes) * share);
}

constexpr auto kNone = static_cast<std::size_t>(-1);

// How much of a task's memory is borrowed.
enum class Standing : std::uint8_t { kWithinFloor, kStraddles, kBorrows };

struct Tenant {
  std::int64_t floor = 0;
  std::int64_t ceiling = 0;   // 0: none
  std::int64_t used = 0;      // by its tasks, including those added in this pass
  std::int64_t due = 0;       // still to come for its tasks that hold pages
  std::int64_t spared = 0;    // part of `due` for spared tasks
  std::int64_t reserved = 0;  // estimates of its tasks that hold pages
  int holding = 0;            // tasks
  bool met = false;           // its best-ranked task is decided; later ones do not take pages for it
  bool met_holder = false;    // the same among tasks that hold pages
  bool waits = false;         // one of its tasks waits for its ceiling
  int at_ceiling = 0;         // tasks that hold pages and wait for its ceiling
};

class Round {
 public:
  Round(std::span<const ScheduleTask> tasks, std::span<const ScheduleQuota> quotas, const ScheduleMemory& memory,
        const ScheduleLimits& limits)
      : tasks_(tasks),
        limits_(limits),
        memory_(memory),
        capacity_(bytes_of(memory.capacity)),
        free_(bytes_of(memory.available)),
        beyond_mark_(capacity_ - share_of(capacity_, limits.preempt_mark)),
        prompt_rows_(limits.prompt_rows),
        verdicts_(tasks.size()) {
    tenants_.reserve(quotas.size());
    for (const ScheduleQuota& quota : quotas) tenants_.push_back({bytes_of(quota.floor), bytes_of(quota.ceiling)});
    std::int64_t used = 0;
    for (const ScheduleTask& task : tasks) {
      if (!task.holds) continue;
      ++holding_;
      due_ += bytes_of(task.due);
      if (task.spared) spared_ += bytes_of(task.due);
      used += bytes_of(task.used);
      reserved_ += bytes_of(task.estimate);
      if (is_small(task, memory_.capacity, limits_) && !task.leaves) small_ += bytes_of(task.estimate);
      if (Tenant* tenant = tenant_of(task)) {
        tenant->used += bytes_of(task.used);
        tenant->due += bytes_of(task.due);
        if (task.spared) tenant->spared += bytes_of(task.due);
        tenant->reserved += bytes_of(task.estimate);
        ++tenant->holding;
      }
    }
    for_requests_ = free_ + used;
    rank();
    put_preempted_first();
    keep_rows_for_the_shortest();
  }

  std::vector<Verdict> decide() {
    for (place_ = 0; place_ < order_.size(); ++place_) {
      const std::size_t i = order_[place_];
      if (verdicts_[i].decision == Decision::kPreempt) continue;
      const ScheduleTask& task = tasks_[i];
      if (i == shortest_) kept_rows_ = 0;
      verdicts_[i].rows = task.reads ? std::min(task.rows, prompt_rows_ - kept_rows_) : task.rows;
      if (verdicts_[i].rows == 0) {
        if (!task.holds && kept_rows_ == 0) block(i);
      } else if (task.holds) {
        grow(i);
      } else if (blocked_by_ == kNone) {
        begin(i);
      } else {
        pass(i);
      }
      if (verdicts_[i].decision != Decision::kRun) verdicts_[i].rows = 0;
      if (Tenant* tenant = tenant_of(task)) {
        tenant->met = true;
        tenant->met_holder = tenant->met_holder || task.holds;
      }
    }
    give_rows_left_over();
    for (const Tenant& tenant : tenants_)
      if (tenant.holding > 1 && tenant.at_ceiling == tenant.holding) break_tie_of(tenant);
    if (std::ranges::all_of(verdicts_, [](const Verdict& v) { return v.decision == Decision::kWait; }) &&
        std::ranges::none_of(tasks_, &ScheduleTask::leaves))
      break_tie();
    return std::move(verdicts_);
  }

 private:
  Tenant* tenant_of(const ScheduleTask& task) {
    const auto index = static_cast<std::size_t>(task.tenant);
    return task.tenant >= 0 && index < tenants_.size() ? &tenants_[index] : nullptr;
  }

  void rank() {
    order_.resize(tasks_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    standing_.assign(tasks_.size(), Standing::kBorrows);
    owns_.assign(tasks_.size(), false);
    if (std::ranges::none_of(tenants_, [](const Tenant& tenant) { return tenant.floor > 0; })) return;
    std::vector<std::int64_t> claimed(tenants_.size());
    std::vector<std::int64_t> held(tenants_.size());
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const Tenant* tenant = tenant_of(tasks_[i]);
      if (tenant == nullptr || tenant->floor == 0) continue;
      const auto index = static_cast<std::size_t>(tenant - tenants_.data());
      const std::int64_t before = claimed[index];
      const std::int64_t bytes = bytes_of(tasks_[i].bytes) + (tasks_[i].holds ? bytes_of(tasks_[i].used) : 0);
      claimed[index] += bytes;
      if (before < tenant->floor)
        standing_[i] = claimed[index] <= tenant->floor ? Standing::kWithinFloor : Standing::kStraddles;
      if (tasks_[i].holds) owns_[i] = (held[index] += bytes) <= tenant->floor;
    }
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) { return standing_[i]; });
  }

  // Puts a preempted task before those of its rank that have not begun. It may have passed them as the shortest, and
  // would otherwise wait for all of them in the middle of its answer.
  void put_preempted_first() {
    std::size_t fresh = 0;  // place of the first of its rank that has not begun
    const auto ranks_alike = [&](std::size_t a, std::size_t b) {
      return standing_[a] == standing_[b] && tasks_[a].priority == tasks_[b].priority;
    };
    for (std::size_t place = 0; place < order_.size(); ++place) {
      const std::size_t i = order_[place];
      const auto at = order_.begin() + static_cast<std::ptrdiff_t>(place);
      const auto waits = [&](std::size_t k) { return !tasks_[k].holds && !tasks_[k].spared; };
      while (fresh < place && (!waits(order_[fresh]) || !ranks_alike(order_[fresh], i))) ++fresh;
      if (fresh < place && !tasks_[i].holds && tasks_[i].spared)
        std::rotate(order_.begin() + static_cast<std::ptrdiff_t>(fresh), at, at + 1);
    }
  }

  void keep_rows_for_the_shortest() {
    std::size_t first = kNone;
    for (const std::size_t i : order_) {
      const ScheduleTask& task = tasks_[i];
      if (!task.reads || task.rows == 0) continue;
      if (first == kNone) {
        first = shortest_ = i;
      } else if (standing_[i] != standing_[first]) {
        break;
      } else if (task.priority == tasks_[first].priority && task.left < tasks_[shortest_].left) {
        shortest_ = i;
      }
    }
    if (shortest_ != first) kept_rows_ = std::min(prompt_rows_ / 2, tasks_[shortest_].rows);
  }

  void give_rows_left_over() {
    for (const std::size_t i : order_) {
      Verdict& verdict = verdicts_[i];
      if (!tasks_[i].reads || verdict.decision != Decision::kRun) continue;
      const int more = std::min(tasks_[i].rows - verdict.rows, prompt_rows_);
      verdict.rows += more;
      prompt_rows_ -= more;
    }
  }

  bool is_first() const { return place_ == 0; }
  bool others_hold(const ScheduleTask& task) const { return holding_ > (task.holds ? 1 : 0); }

  // Returns whether a task may use the memory beyond the marks.
  bool privileged(std::size_t i) const {
    return is_first() || standing_[i] == Standing::kWithinFloor || owns_[i] || (tasks_[i].holds && tasks_[i].spared);
  }

  // -- Victims --

  bool may_take(std::size_t i, std::size_t victim, bool of_tenant) const {
    const ScheduleTask& task = tasks_[i];
    const ScheduleTask& other = tasks_[victim];
    if (!other.holds || other.spared || verdicts_[victim].decision != Decision::kWait) return false;
    const bool same_tenant = task.tenant >= 0 && task.tenant == other.tenant;
    if (owns_[victim] && !same_tenant) return false;
    if (task.holds || is_first() || (same_tenant && of_tenant && !tenants_[static_cast<std::size_t>(task.tenant)].met))
      return true;
    if (standing_[victim] != standing_[i]) return standing_[victim] > standing_[i];
    return other.priority > task.priority;
  }

  // Returns the tasks ranked behind this one whose pages it may take, the first to be taken in front. `of_tenant`: only
  // of its tenant. A task that holds pages within its tenant's floor may also take those of other tenants that rank
  // before it: they do so only because the floor is also claimed by tasks that have not begun.
  std::vector<std::size_t> victims_of(std::size_t i, bool of_tenant) const {
    std::vector<std::size_t> victims;
    for (std::size_t place = owns_[i] ? 0 : place_ + 1; place < order_.size(); ++place) {
      const std::size_t other = order_[place];
      if (place <= place_ && tasks_[other].tenant == tasks_[i].tenant) continue;
      if (of_tenant && tasks_[other].tenant != tasks_[i].tenant) continue;
      if (may_take(i, other, of_tenant)) victims.push_back(other);
    }
    std::ranges::sort(victims, [&](std::size_t a, std::size_t b) {
      return std::tuple(standing_[b], tasks_[b].priority, tasks_[a].cost, b) <
             std::tuple(standing_[a], tasks_[a].priority, tasks_[b].cost, a);
    });
    return victims;
  }

  void preempt(std::size_t victim) {
    const ScheduleTask& task = tasks_[victim];
    verdicts_[victim].decision = Decision::kPreempt;
    move(task, -1);
  }

  // Subtracts a task that holds pages from the sums, or (sign 1) adds it back.
  void move(const ScheduleTask& task, int sign) {
    free_ -= sign * bytes_of(task.held);
    due_ += sign * bytes_of(task.due);
    if (task.spared) spared_ += sign * bytes_of(task.due);
    reserved_ += sign * bytes_of(task.estimate);
    if (is_small(task, memory_.capacity, limits_)) small_ += sign * bytes_of(task.estimate);
    holding_ += sign;
    if (Tenant* tenant = tenant_of(task)) {
      tenant->used += sign * bytes_of(task.used);
      tenant->due += sign * bytes_of(task.due);
      if (task.spared) tenant->spared += sign * bytes_of(task.due);
      tenant->reserved += sign * bytes_of(task.estimate);
      tenant->holding += sign;
    }
  }

  // Preempts as few of the first victims as make `fits` hold; none if all are not enough.
  template <class Fits>
  bool make_fit(std::span<const std::size_t> victims, const Fits& fits) {
    std::size_t taken = 0;
    while (!fits() && taken < victims.size()) move(tasks_[victims[taken++]], -1);
    const bool enough = fits();
    for (std::size_t k = taken; k-- > 0;) {
      const ScheduleTask& task = tasks_[victims[k]];
      move(task, 1);
      if (enough && !fits()) preempt(victims[k]);
    }
    return enough;
  }

  // -- Decisions --

  static std::int64_t own_due(const ScheduleTask& task) { return task.holds && task.spared ? bytes_of(task.due) : 0; }

  // Returns the bytes not promised to others.
  std::int64_t open_to(const ScheduleTask& task) const { return free_ - spared_ + own_due(task); }

  // As above, below the ceiling of its tenant.
  static std::int64_t open_below_ceiling(const Tenant& tenant, const ScheduleTask& task) {
    return tenant.ceiling - tenant.used - tenant.spared + own_due(task);
  }

  void run(std::size_t i) {
    const ScheduleTask& task = tasks_[i];
    const std::int64_t bytes = bytes_of(task.bytes);
    verdicts_[i].decision = Decision::kRun;
    if (task.reads) prompt_rows_ -= verdicts_[i].rows;
    free_ -= bytes;
    Tenant* tenant = tenant_of(task);
    if (tenant != nullptr) tenant->used += bytes;
    if (task.holds) {
      const std::int64_t came = std::min(bytes, bytes_of(task.due));
      due_ -= came;
      if (tenant != nullptr) tenant->due -= came;
      if (task.spared) spared_ -= came;
      if (task.spared && tenant != nullptr) tenant->spared -= came;
      return;
    }
    ++holding_;
    reserved_ += bytes_of(task.estimate);
    if (is_small(task, memory_.capacity, limits_)) small_ += bytes_of(task.estimate);
    if (tenant == nullptr) return;
    tenant->reserved += bytes_of(task.estimate);
    ++tenant->holding;
  }

  bool any_spared(bool of_tenant, const ScheduleTask& task) const {
    return std::ranges::any_of(tasks_, [&](const ScheduleTask& other) {
      return &other != &task && other.holds && other.spared && (!of_tenant || other.tenant == task.tenant);
    });
  }

  // Preempts all victims; none while another spared task holds pages, since that one goes on first.
  void take_all(std::size_t i, bool of_tenant) {
    if (any_spared(of_tenant, tasks_[i])) return;
    for (const std::size_t victim : victims_of(i, of_tenant)) preempt(victim);
  }

  void grow(std::size_t i) {
    const ScheduleTask& task = tasks_[i];
    const std::int64_t bytes = bytes_of(task.bytes);
    Tenant* tenant = tenant_of(task);
    const auto below_ceiling = [&] {
      return tenant == nullptr || tenant->ceiling == 0 || bytes <= open_below_ceiling(*tenant, task);
    };
    if (!below_ceiling() && !make_fit(victims_of(i, true), below_ceiling)) {
      tenant->waits = true;
      ++tenant->at_ceiling;
      if (tenant->met_holder) return;
      if (tenant->holding == 1) {
        verdicts_[i].decision = Decision::kOverCeiling;
      } else {
        take_all(i, true);
      }
      return;
    }
    const auto below_mark = [&] { return bytes <= open_to(task) - beyond_mark_; };
    const auto fits = [&] { return bytes <= open_to(task); };
    if (bytes == 0 || below_mark()) return run(i);
    const std::vector<std::size_t> victims = victims_of(i, false);
    if (make_fit(victims, below_mark)) return run(i);
    if (privileged(i) && make_fit(victims, fits)) return run(i);
    block(i);
    if (!is_first()) return;
    if (others_hold(task)) return take_all(i, false);
    verdicts_[i].decision = Decision::kReject;
  }

  // Returns whether the estimates of all tasks and the unused floors of other tenants fit.
  bool can_reserve(const ScheduleTask& task) {
    const Tenant* own = tenant_of(task);
    std::int64_t sum = reserved_ + bytes_of(std::max(task.estimate, task.bytes));
    for (const Tenant& tenant : tenants_) {
      const std::int64_t more = &tenant == own ? bytes_of(std::max(task.estimate, task.bytes)) : 0;
      sum += std::max<std::int64_t>(tenant.floor - tenant.reserved - more, 0);
    }
    return sum <= for_requests_;
  }

  void begin(std::size_t i) {
    const ScheduleTask& task = tasks_[i];
    if (is_first() && holding_ == 0) return run(i);  // alone it may have all; what it takes is known once it has begun
    const std::int64_t bytes = bytes_of(task.bytes);
    const std::int64_t whole = std::max(bytes, bytes_of(task.estimate));
    const bool reserves = limits_.admission == Admission::kReserve;
    Tenant* tenant = tenant_of(task);
    const auto below_ceiling = [&] {
      if (tenant == nullptr || tenant->ceiling == 0 || tenant->holding == 0) return true;
      if (reserves) return tenant->reserved + whole <= tenant->ceiling;
      if (limits_.stop_mark > 1) return bytes <= open_below_ceiling(*tenant, task);
      return tenant->used + tenant->due + whole <= share_of(tenant->ceiling, limits_.stop_mark);
    };
    if (tenant != nullptr && tenant->waits) return;
    if (!below_ceiling() && (reserves || !make_fit(victims_of(i, true), below_ceiling))) {
      tenant->waits = true;
      return;
    }
    const auto place = [&] { return holding_ < limits_.running; };
    const auto below_mark = [&] {
      if (!place() || bytes > open_to(task)) return false;
      if (reserves) return can_reserve(task);
      if (limits_.stop_mark > 1) return true;
      return capacity_ - free_ + due_ + whole < share_of(capacity_, limits_.stop_mark);
    };
    const auto fits = [&] { return place() && bytes <= open_to(task); };
    if (below_mark()) return run(i);
    if (!reserves && privileged(i)) {
      if (fits() || make_fit(victims_of(i, false), fits)) return run(i);
      if (is_first()) take_all(i, false);
    } else if (!reserves && make_fit(victims_of(i, false), below_mark)) {
      return run(i);
    }
    block(i);
    if (!is_first()) pass(i);
  }

  // From here on no task starts except small ones of the first waiting task's rank.
  void block(std::size_t i) {
    if (blocked_by_ == kNone) blocked_by_ = i;
    cramped_ = cramped_ || tasks_[i].holds;
  }

  // Starts a small task although an earlier one, or itself, waits to start.
  void pass(std::size_t i) {
    const ScheduleTask& task = tasks_[i];
    // A task that waits for all of the memory would wait forever.
    if (blocked_by_ == order_.front() || bytes_of(tasks_[blocked_by_].bytes) > for_requests_) return;
    if (limits_.admission == Admission::kReserve || cramped_ || !is_small(task, memory_.capacity, limits_) ||
        holding_ >= limits_.running)
      return;
    if (standing_[i] != standing_[blocked_by_] || task.priority != tasks_[blocked_by_].priority) return;
    const std::int64_t bytes = bytes_of(task.bytes);
    const std::int64_t whole = std::max(bytes, bytes_of(task.estimate));
    if (small_ + whole > share_of(capacity_, limits_.small_together)) return;
    if (bytes > open_to(task) || capacity_ - free_ + due_ + whole > capacity_ - beyond_mark_) return;
    if (const Tenant* tenant = tenant_of(task)) {
      if (tenant->waits) return;
      const std::int64_t most = share_of(tenant->ceiling, limits_.preempt_mark);
      if (most > 0 && tenant->used + tenant->due + whole > most) return;
    }
    run(i);
  }

  // Handles that nothing runs although there is work. Spared tasks, reservations and floors block each other, which can
  // only happen while others than requests hold memory. The best-ranked holder gets the pages of all others.
  void break_tie() {
    std::vector<std::size_t> holders;
    for (const std::size_t i : order_)
      if (tasks_[i].holds) holders.push_back(i);
    const std::size_t kept = holders.size() > 1 ? 1 : 0;
    for (std::size_t k = kept; k < holders.size(); ++k)
      if (holders[k] != order_.front()) verdicts_[holders[k]].decision = Decision::kPreempt;
  }

  // Handles that all of a tenant's tasks that hold pages wait for its ceiling, spared ones included. The best-ranked
  // gets the pages of the others.
  void break_tie_of(const Tenant& tenant) {
    bool first = true;
    for (const std::size_t i : order_) {
      if (tenant_of(tasks_[i]) != &tenant || !tasks_[i].holds) continue;
      if (!first) verdicts_[i].decision = Decision::kPreempt;
      first = false;
    }
  }

  std::span<const ScheduleTask> tasks_;
  const ScheduleLimits& limits_;
  const ScheduleMemory& memory_;
  std::int64_t capacity_ = 0;
  std::int64_t free_ = 0;
  std::int64_t beyond_mark_ = 0;   // bytes above the preempt mark
  std::int64_t for_requests_ = 0;  // bytes not held outside requests
  std::int64_t due_ = 0;           // of tasks that hold pages
  std::int64_t spared_ = 0;        // part of due_ for spared tasks
  std::int64_t reserved_ = 0;      // estimates of tasks that hold pages
  int holding_ = 0;
  int prompt_rows_ = 0;             // not yet given to a task
  int kept_rows_ = 0;               // part of prompt_rows_, kept for shortest_ until its turn
  std::size_t shortest_ = kNone;    // task whose prompt has the fewest rows left
  std::size_t blocked_by_ = kNone;  // first task that waits to start, or for room
  bool cramped_ = false;            // a task that holds pages waits for room
  std::int64_t small_ = 0;          // estimates of small tasks that hold pages
  std::size_t place_ = 0;           // index in order_ of the current task
  std::vector<Tenant> tenants_;
  std::vector<std::size_t> order_;  // tasks by rank
  std::vector<Standing> standing_;  // tasks that have not begun claim floors too
  std::vector<bool> owns_;          // it holds pages, all within its tenant's floor
  std::vector<Verdict> verdicts_;
};

}  // namespace

bool is_small(const ScheduleTask& task, std::uint64_t capacity, const ScheduleLimits& limits) {
  return bytes_of(std::max(task.bytes, task.estimate)) <= share_of(bytes_of(capacity), limits.small);
}

std::vector<Verdict> schedule(std::span<const ScheduleTask> tasks, std::span<const ScheduleQuota> quotas,
                              const ScheduleMemory& memory, const ScheduleLimits& limits) {
  return Round(tasks, quotas, memory, limits).decide();
}

}  // namespace kvasir

#include "simulated_server.h"

#include <algorithm>
#include <cmath>

namespace kvasir::bench {

Lengths::Lengths(const Workload& workload, std::uint64_t seed) : workload_(workload), random_(seed) {
  // Cutting lowers the mean: finds the median whose cut mean is the one wanted.
  double low = 1, high = 4.0 * workload.most;
  for (int i = 0; i < 40; ++i) {
    median_ = (low + high) / 2;
    std::mt19937_64 fixed(7);
    std::normal_distribution<double> normal;
    double sum = 0;
    constexpr int kDraws = 4000;
    for (int k = 0; k < kDraws; ++k)
      sum += std::clamp(median_ * std::exp(workload.spread * normal(fixed)), 2.0, 1.0 * workload.most);
    (sum / kDraws < workload.mean ? low : high) = median_;
  }
}

Lengths::Request Lengths::next() {
  std::normal_distribution<double> normal;
  const double total = std::clamp(median_ * std::exp(workload_.spread * normal(random_)), 2.0, 1.0 * workload_.most);
  std::uniform_real_distribution<double> share(0.5, 1.5);
  const int all = static_cast<int>(total);
  const int prompt = static_cast<int>(total * std::min(0.95, workload_.prompt_share * share(random_)));
  return {std::clamp(prompt, 1, all - 1), all - std::clamp(prompt, 1, all - 1)};
}

std::uint64_t MemoryModel::bytes(std::int64_t tokens) const {
  if (tokens == 0) return 0;
  if (contiguous) return static_cast<std::uint64_t>(most) * token_bytes + table_bytes;
  const auto blocks = static_cast<std::uint64_t>((tokens + block - 1) / block);
  return blocks * (static_cast<std::uint64_t>(block) * token_bytes + block_bytes) + table_bytes;
}

void Histogram::add(double seconds) {
  const double place = seconds <= kLeast ? 0 : std::log(seconds / kLeast) * 100;
  ++counts_[std::min(static_cast<std::size_t>(place), counts_.size() - 1)];
  ++total_;
}

double Histogram::quantile(double share) const {
  auto left = static_cast<std::int64_t>(share * static_cast<double>(total_));
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (left < counts_[i]) return kLeast * std::exp((static_cast<double>(i) + 0.5) / 100);
    left -= counts_[i];
  }
  return total_ > 0 ? kLeast * std::exp(static_cast<double>(counts_.size()) / 100) : 0;
}

namespace {

struct Job {
  int tenant = 0;
  int priority = 0;
  std::int64_t prompt = 0, total = 0;
  std::int64_t done = 0;   // tokens in memory
  std::int64_t known = 0;  // tokens read or generated
  bool holds = false, spared = false, started = false;
  std::int64_t most_done = 0;
  double arrived = 0, newest = 0;  // seconds on the virtual clock

  bool reads() const { return done < known; }
};

class Server {
 public:
  explicit Server(const SimulationOptions& options) : options_(options), lengths_(options.workload, options.seed) {
    if (options_.capacity == 0)
      options_.capacity = 64 * MemoryModel(options.memory).bytes(static_cast<std::int64_t>(options.workload.mean));
    if (options_.tenants.empty()) options_.tenants.push_back({{}, 0, options_.clients});
    for (const SimulatedTenant& tenant : options_.tenants) quotas_.push_back(tenant.quota);
    clients_.resize(quotas_.size());
    tenant_bytes_.resize(quotas_.size());
    tenant_used_.resize(quotas_.size());
    tenant_first_.resize(quotas_.size());
    result_.tenant_preemptions.resize(quotas_.size());
  }

  SimulationResult run() {
    while (result_.finished + result_.rejected < options_.requests) {
      for (std::size_t t = 0; t < clients_.size(); ++t)
        while (clients_[t] < options_.tenants[t].clients && sent_ < options_.requests) arrive(t);
      pass();
    }
    const double seconds = result_.seconds = clock_;
    result_.mean_batch = batch_ / seconds;
    result_.mean_usage = bytes_ / seconds / static_cast<double>(options_.capacity);
    result_.utilisation = live_ / bytes_;
    result_.gap_p50 = gaps_.quantile(0.5);
    result_.gap_p99 = gaps_.quantile(0.99);
    result_.first_p50 = firsts_.quantile(0.5);
    result_.first_p99 = firsts_.quantile(0.99);
    for (std::size_t t = 0; t < quotas_.size(); ++t) {
      result_.tenant_share.push_back(tenant_bytes_[t] / seconds / static_cast<double>(options_.capacity));
      result_.tenant_first_p50.push_back(tenant_first_[t].quantile(0.5));
    }
    return result_;
  }

 private:
  void arrive(std::size_t tenant) {
    const Lengths::Request lengths = lengths_.next();
    Job job;
    job.prompt = job.known = lengths.prompt;
    job.total = lengths.prompt + lengths.answer;
    job.tenant = static_cast<int>(tenant);
    job.priority = options_.tenants[tenant].priority;
    job.arrived = clock_;
    jobs_.insert(std::ranges::upper_bound(jobs_, job.priority, {}, &Job::priority), job);
    ++clients_[tenant];
    ++sent_;
  }

  void describe(int prompt_rows) {
    const MemoryModel& memory = options_.memory;
    const int ahead = options_.limits.ahead;
    tasks_.clear();
    for (const Job& job : jobs_) {
      ScheduleTask task;
      task.holds = job.holds;
      task.reads = job.reads();
      task.rows = task.reads ? static_cast<int>(std::min<std::int64_t>(job.known - job.done, prompt_rows)) : 1;
      task.left = task.reads ? job.known - job.done : 0;
      const std::uint64_t now = memory.bytes(job.done);
      const std::uint64_t whole = memory.bytes(std::min(job.known + ahead, job.total));
      task.bytes = job.holds ? memory.bytes(job.done + task.rows) - now : whole;
      task.held = task.used = job.holds ? now : 0;
      task.due = job.holds && task.reads ? std::max(whole - now, task.bytes) : task.bytes;
      task.estimate =
          memory.bytes(std::max(job.total, std::min<std::int64_t>(job.prompt + options_.max_tokens, memory.most)));
      task.spared = job.spared;
      task.priority = job.priority;
      task.tenant = job.tenant;
      task.cost =
          preemption_cost({job.prompt, job.known - job.prompt, 0, true}, options_.cost, options_.limits.prompt_rows)
              .least();
      tasks_.push_back(task);
    }
  }

  void pass() {
    int generating = 0;
    for (const Job& job : jobs_) generating += job.holds && !job.reads() ? 1 : 0;
    ScheduleLimits limits = options_.limits;
    limits.prompt_rows =
        prompt_rows_within(options_.max_itl, rates_.rates(), rates_.excess(), generating, options_.limits.prompt_rows);
    describe(limits.prompt_rows);
    const std::vector<Verdict> verdicts =
        schedule(tasks_, quotas_, {options_.capacity, options_.capacity - used_}, limits);
    int prompt_rows = 0, other_rows = 0;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (verdicts[i].decision != Decision::kRun) continue;
      (tasks_[i].reads ? prompt_rows : other_rows) += verdicts[i].rows;
    }
    const double seconds = prompt_rows + other_rows > 0 ? options_.cost.seconds(prompt_rows, other_rows) : 0;
    if (seconds > 0) rates_.note(prompt_rows, other_rows, seconds);
    clock_ += seconds;
    ++result_.passes;
    for (std::size_t i = 0; i < jobs_.size(); ++i) apply(jobs_[i], verdicts[i]);
    account(seconds);
    std::erase_if(jobs_, [](const Job& job) { return job.done == job.total; });
  }

  void set_tokens(Job& job, std::int64_t tokens) {
    const MemoryModel& memory = options_.memory;
    const std::uint64_t more = memory.bytes(tokens) - memory.bytes(job.done);  // wraps where it is less
    used_ += more;
    tenant_used_[static_cast<std::size_t>(job.tenant)] += more;
    live_tokens_ += tokens - job.done;
    job.done = tokens;
  }

  void apply(Job& job, const Verdict& verdict) {
    const auto tenant = static_cast<std::size_t>(job.tenant);
    switch (verdict.decision) {
      case Decision::kWait: break;
      case Decision::kPreempt:
        ++result_.preemptions;
        ++result_.tenant_preemptions[tenant];
        result_.preempted_twice += job.spared ? 1 : 0;
        set_tokens(job, 0);
        job.holds = false;
        job.spared = true;
        --holding_;
        break;
      case Decision::kReject:
      case Decision::kOverCeiling:
        ++result_.rejected;
        end(job);
        break;
      case Decision::kRun: run(job, tenant, verdict.rows); break;
    }
  }

  void run(Job& job, std::size_t tenant, int rows) {
    holding_ += job.holds ? 0 : 1;
    job.holds = true;
    set_tokens(job, job.done + rows);
    result_.recomputed += std::max<std::int64_t>(0, std::min(job.most_done, job.done) - (job.done - rows));
    job.most_done = std::max(job.most_done, job.done);
    const bool token = job.done > job.known || (job.done == job.known && !job.started && job.done >= job.prompt);
    job.known = std::max(job.known, job.done);
    if (!token) return;
    if (job.started) {
      gaps_.add(clock_ - job.newest);
      result_.gap_most = std::max(result_.gap_most, clock_ - job.newest);
    } else {
      firsts_.add(clock_ - job.arrived);
      tenant_first_[tenant].add(clock_ - job.arrived);
    }
    job.started = true;
    job.spared = false;
    job.newest = clock_;
    ++result_.generated;
    if (job.done < job.total) return;
    ++result_.finished;
    end(job);
  }

  void end(Job& job) {
    set_tokens(job, 0);
    job.done = job.total = 0;
    --clients_[static_cast<std::size_t>(job.tenant)];
    --holding_;
  }

  void account(double seconds) {
    batch_ += seconds * holding_;
    bytes_ += seconds * static_cast<double>(used_);
    live_ += seconds * static_cast<double>(live_tokens_) * static_cast<double>(options_.memory.token_bytes);
    for (std::size_t t = 0; t < quotas_.size(); ++t) tenant_bytes_[t] += seconds * static_cast<double>(tenant_used_[t]);
  }

  SimulationOptions options_;
  Lengths lengths_;
  RateEstimator rates_;
  std::vector<ScheduleQuota> quotas_;
  std::vector<Job> jobs_;  // in order of priority, then of arrival
  std::vector<ScheduleTask> tasks_;
  std::vector<int> clients_;  // of each tenant, under way
  std::int64_t sent_ = 0;
  double clock_ = 0;
  std::uint64_t used_ = 0;
  std::int64_t live_tokens_ = 0;
  int holding_ = 0;
  double batch_ = 0, bytes_ = 0, live_ = 0;  // integrals over the virtual clock
  std::vector<std::uint64_t> tenant_used_;
  std::vector<double> tenant_bytes_;
  Histogram gaps_, firsts_;
  std::vector<Histogram> tenant_first_;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulationOptions& options) {
  return Server(options).run();
}

}  // namespace kvasir::bench

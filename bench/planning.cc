// What a decode pass costs beside attention and scoring: planning, room for a token, its description in a batch, and
// the tokens that leave; at two numbers of retained tokens. It must not grow with them: the exit code is 1 if the
// median or the mean of any policy is more than 1.5 times as much at the larger number.
//
//   planning [STEPS] [SMALL] [LARGE] [EVICTED]
//
// Forked: the table shares its pages with a fork that stays as it is, and so plans with a reserve for the copies of
// those that compaction may write, until a compaction has copied them.
//
// One page table of 8 lanes and pages of 32 tokens, whose pages have no bytes: nothing is read or moved. A step that
// compacts is left out; its work is counted as slots moved per token. Before each of the two timed parts of a step, a
// buffer of EVICTED MiB, more than the last cache holds, is read as a forward pass reads weights: neither number of
// tokens finds its tables in a cache. The same steps run three times, and the least time of each counts: what a step
// does recurs, what the machine does beside it does not. Printed: median and mean per token, and the ratios of large to
// small.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kv/describe_table.h"
#include "retention/registry.h"
#include "sequence/sequence.h"

namespace kvasir::bench {
namespace {

constexpr double kMostRatio = 1.5;

// Reads more than the caches hold.
class CacheEviction {
 public:
  explicit CacheEviction(std::size_t bytes) : words_(bytes / sizeof(std::uint64_t), 1) {}
  void run() {
    constexpr std::size_t kWordsPerLine = 8;
    for (std::size_t i = 0; i < words_.size(); i += kWordsPerLine) sum_ += words_[i];
  }
  std::uint64_t sum() const { return sum_; }

 private:
  std::vector<std::uint64_t> words_;
  std::uint64_t sum_ = 0;
};

struct Figures {
  double median = 0;  // seconds per token
  double mean = 0;
  double slots_moved = 0;  // per token, by compaction
};

class Table {
 public:
  Table(const std::string& spec, std::int64_t retained, bool forked)
      : policy_(std::move(*make_policy(spec))),
        cache_(std::move(*KvCache::create({1, 8, {128, 32, KvType::kF16}}, std::uint64_t{1} << 40))),
        sequence_(cache_->new_sequence(sequence_layout(*policy_))),
        random_(1) {
    policy_->begin({1, 1, 32});
    while (table().length() < retained && table().next_index() < 4 * retained) fill(retained);
    if (!forked) return;
    Result<KvSequence> fork = cache_->fork(sequence_);
    if (!fork.ok()) std::exit(1);
    fork_ = std::move(*fork);
  }

  // Lowers seconds[step] to what the step takes. A step that compacts counts nothing: it is left at infinity.
  void run(std::span<double> seconds, CacheEviction& caches) {
    const auto steps = static_cast<int>(seconds.size());
    for (int i = 0; i < steps; ++i) {
      const PolicyChunk chunk{.first = table().next_index(), .rows = 1};
      caches.run();
      const double start = now();
      const KvSequence::Room room = sequence_.plan_append(1);
      const bool fits = room.append + room.reserve <= cache_->budget().available();
      if (!fits || !sequence_.append(1).ok()) std::exit(1);
      IndexRange hidden;
      find_hidden(*policy_, chunk, {&hidden, 1});
      describe_table(table(), {&hidden, 1}, 0, &description_);
      const double described = now();
      observe(chunk);
      plan_.clear();
      policy_->end_chunk(chunk, 0, plan_);
      const std::uint64_t moved = table().pages().slots_moved();
      caches.run();
      const double decided = now();
      if (!table().apply(plan_).ok()) std::exit(1);
      const double applied = now();
      const bool compacted = table().layout().runs() == 1 && table().pages().slots_moved() > moved;
      double& least = seconds[static_cast<std::size_t>(i)];
      if (!compacted) least = std::min(least, described - start + applied - decided);
    }
  }
  std::uint64_t slots_moved() { return table().pages().slots_moved(); }
  static Figures figures_of(std::vector<double> seconds, double slots_moved) {
    Figures figures;
    figures.slots_moved = slots_moved;
    std::erase_if(seconds, [](double s) { return std::isinf(s); });
    for (const double s : seconds) figures.mean += s / static_cast<double>(seconds.size());
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
    figures.median = seconds[seconds.size() / 2];
    return figures;
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  PageTable& table() { return sequence_.table(0); }

  void fill(std::int64_t retained) {
    const int rows = chunk_rows(*policy_, static_cast<int>(std::min<std::int64_t>(4096, retained)));
    const PolicyChunk chunk{.first = table().next_index(), .rows = rows};
    if (!sequence_.append(rows).ok()) std::exit(1);
    plan_.clear();
    policy_->end_chunk(chunk, 0, plan_);
    if (!table().apply(plan_).ok()) std::exit(1);
  }

  // Any masses: which tokens leave matters, not why.
  void observe(const PolicyChunk& chunk) {
    const std::size_t reductions = reductions_of(*policy_).size();
    if (reductions == 0) return;
    mass_.resize(static_cast<std::size_t>(table().length()));
    for (double& mass : mass_) mass = static_cast<double>(random_() >> 40);
    const std::vector<std::span<const double>> masses(reductions, mass_);
    policy_->as<ObservesMasses>()->observe(chunk, 0, 0, masses);
  }

  std::unique_ptr<RetentionPolicy> policy_;
  std::unique_ptr<KvCache> cache_;
  KvSequence sequence_;
  std::optional<KvSequence> fork_;
  BatchTable description_;
  KeepPlan plan_;
  std::vector<double> mass_;
  std::mt19937_64 random_;
};

int run(int steps, std::int64_t small, std::int64_t large, int evicted) {
  struct Case {
    std::string spec;
    bool forked = false;
  };
  const auto cases = [](std::int64_t n) {
    const std::string h2o = fmt::format("h2o:budget={},recent={},pos=original", n, n / 2);
    const std::string cascade = fmt::format("cascade:size={},n=4,sinks=4", n - 4);
    return std::vector<Case>{
        {"full"}, {fmt::format("streaming:sinks=4,window={}", n - 4)}, {h2o}, {cascade}, {h2o, true}, {cascade, true}};
  };
  CacheEviction caches(static_cast<std::size_t>(evicted) << 20);
  fmt::print("{:<16} {:>28} {:>28} {:>14}\n", "", fmt::format("{} tokens: us, mean", small),
             fmt::format("{} tokens: us, mean", large), "ratio, of means");
  bool flat = true;
  for (std::size_t i = 0; i < cases(small).size(); ++i) {
    Figures figures[2];
    for (const int which : {0, 1}) {
      const std::int64_t n = which == 0 ? small : large;
      std::vector<double> seconds(static_cast<std::size_t>(steps), std::numeric_limits<double>::infinity());
      double moved = 0;
      for (int repetition = 0; repetition < 3; ++repetition) {
        Table table(cases(n)[i].spec, n, cases(n)[i].forked);
        const std::uint64_t moved_before = table.slots_moved();
        table.run(seconds, caches);
        moved = static_cast<double>(table.slots_moved() - moved_before) / steps;
      }
      figures[which] = Table::figures_of(std::move(seconds), moved);
    }
    const Case of = cases(small)[i];
    const std::string name = of.spec.substr(0, of.spec.find(':')) + (of.forked ? ", forked" : "");
    const double of_medians = figures[1].median / figures[0].median, of_means = figures[1].mean / figures[0].mean;
    const bool passed = of_medians <= kMostRatio && of_means <= kMostRatio;
    flat = flat && passed;
    fmt::print(
        "{:<16} {:>20.3f} {:>7.3f} {:>20.3f} {:>7.3f} {:>7.2f} {:>7.2f} {}  slots moved per token {:.1f}, {:.1f}\n",
        name, figures[0].median * 1e6, figures[0].mean * 1e6, figures[1].median * 1e6, figures[1].mean * 1e6,
        of_medians, of_means, passed ? "pass" : "FAIL", figures[0].slots_moved, figures[1].slots_moved);
  }
  fmt::print("{} (at most {}; checksum {})\n", flat ? "pass" : "FAIL", kMostRatio, caches.sum());
  return flat ? 0 : 1;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int steps = argument(1, 500), small = argument(2, 2048), large = argument(3, 131072);
  const int evicted = argument(4, 48);
  if (steps < 1 || small < 16 || large < small || evicted < 0) {
    fmt::print(stderr, "planning [STEPS] [SMALL] [LARGE] [EVICTED]: numbers of tokens, 16 or more; MiB\n");
    return 2;
  }
  return kvasir::bench::run(steps, small, large, evicted);
}

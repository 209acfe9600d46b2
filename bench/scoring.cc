// What a policy's scoring costs per decoded token, against attention over the same tokens. The exit code is 1 if any
// policy takes more than 5% of it.
//
//   scoring [STEPS] [SMALL] [LARGE]
//
// One layer of 8 KV heads of 64 and 32 query heads (Llama 3.2 1B), f16 pages of 32 tokens, two threads, at two numbers
// of retained tokens. Scoring is observe and end_chunk, for all tables of the layer, on one thread, as the engine calls
// them; masses are given, and have just been written. Attention is the CPU backend's, of one row that nobody listens
// to. Both find their data where a forward pass leaves it: before each timed part, a buffer larger than the last cache
// is read. Printed: median and mean; the larger counts, but for the slowest hundredth of the steps, which are the
// machine's.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/kernels/kernels.h"
#include "kv/describe_table.h"
#include "retention/registry.h"
#include "sequence/sequence.h"

namespace kvasir::bench {
namespace {

constexpr double kMostShare = 0.05;
constexpr int kKvHeads = 8;
constexpr int kHeads = 32;
constexpr int kHeadDim = 64;
constexpr int kSlots = 32;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double>& values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "scoring: {}\n", status.message());
  std::exit(2);
}

// Reads more than the caches hold.
class CacheEviction {
 public:
  void run() {
    for (std::size_t i = 0; i < words_.size(); i += 8) sum_ += words_[i];
  }
  std::uint64_t sum() const { return sum_; }

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>((std::size_t{48} << 20) / sizeof(std::uint64_t), 1);
  std::uint64_t sum_ = 0;
};

// Seconds that attention of one row over `tokens` tokens takes.
double attention_seconds(std::int64_t tokens, int steps, CacheEviction& caches) {
  const KvCacheShape kv{1, kKvHeads, {kHeadDim, kSlots, KvType::kF16}};
  Rotation rotation{.dims = kHeadDim};
  for (int i = 0; i < kHeadDim / 2; ++i) rotation.inverse_frequencies.push_back(std::pow(10000.0, -2.0 * i / kHeadDim));
  const BackendShape shape{.rotations = {rotation},
                           .layers = {{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim}}};
  ThreadPool threads(2);
  const KernelTable* kernels = find_kernels("auto");
  CpuPageStore store(kernels, &threads, shape.rotations);
  const SequenceLayout layout;
  auto cache = std::move(*KvCache::create(kv, KvCache::cost(kv, layout, tokens / kSlots + 2), &store));
  KvSequence sequence = cache->new_sequence(layout);
  check(sequence.append(static_cast<int>(tokens)));
  std::mt19937 random(1);
  std::vector<std::uint16_t> page(kv.page.bytes() / sizeof(std::uint16_t));
  for (const PageId id : sequence.only_table().pages().all()) {
    for (std::uint16_t& half : page) half = static_cast<std::uint16_t>(0x3000 + (random() & 0x87ff));  // up to 0.5
    store.write(id, std::as_bytes(std::span(page)));
  }
  Batch batch;
  batch.tokens.assign(1, 0);
  batch.sequences.push_back({.rows = 1, .layers = sequence.layers()});
  const IndexRange hidden;
  describe_table(sequence.only_table(), {&hidden, 1}, 0, &batch.tables.emplace_back());
  std::vector<float> query(kHeads * kHeadDim), out(query.size());
  for (float& value : query) value = static_cast<float>(random() % 1000) / 1000.0F - 0.5F;
  CpuAttention attention(&shape, kernels, &threads);
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    attention.begin({.batch = &batch, .store = &store});
    caches.run();
    const double start = now();
    attention.attend(0, query.data(), {}, out.data());
    seconds.push_back(now() - start);
  }
  return median(seconds);
}

// The tables of one layer under a policy that has come to hold about `tokens` tokens and drops what comes above.
class Layer {
 public:
  Layer(const std::string& spec, std::int64_t tokens) : policy_(std::move(*make_policy(spec))), tokens_(tokens) {
    tables_ = policy_->traits().scope == PolicyScope::kHead ? kKvHeads : 1;
    policy_->begin({1, tables_, kHeads / tables_});
    std::mt19937_64 random(1);
    mass_.resize(static_cast<std::size_t>(2 * tokens + 8192));
    for (double& mass : mass_) mass = static_cast<double>(random() >> 11) * 0x1p-53;
    fill();
  }

  // As the backend leaves the masses of the next token.
  double touch_masses() const {
    double sum = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(held_.front()) + 4096; ++i) sum += mass_[i];
    return sum;
  }

  // Seconds of one token in generation. Which tokens draw attention changes from one to the next.
  double step() {
    const PolicyChunk chunk{.first = policy_->seen(), .rows = 1};
    const std::size_t from = static_cast<std::size_t>(chunk.first * 7919 % 4096);
    const double start = now();
    for (int t = 0; t < tables_; ++t) {
      if (wants_row(*policy_, chunk, 0)) {
        masses_.assign(
            reductions_of(*policy_).size(),
            std::span(mass_).subspan(from, static_cast<std::size_t>(held_[static_cast<std::size_t>(t)] + 1)));
        policy_->as<ObservesMasses>()->observe(chunk, t, 0, masses_);
      }
      plan_.clear();
      policy_->end_chunk(chunk, t, plan_);
      note(t, 1);
      plan_.clear();
    }
    for (int t = 0; t < tables_; ++t) policy_->finish_chunk(chunk, t, plan_);
    return now() - start;
  }
  std::int64_t held() const { return held_.front(); }

 private:
  void note(int table, std::int64_t came) {
    std::int64_t& held = held_[static_cast<std::size_t>(table)];
    held += came;
    for (const IndexRange& range : plan_.drop) held -= range.size();
  }

  // Reads a prompt. Of its rows the last is observed where the policy admits that; otherwise all are, in chunks whose
  // end sees many of them.
  void fill() {
    held_.assign(static_cast<std::size_t>(tables_), 0);
    const std::int64_t total = tokens_ + 64;
    while (policy_->seen() < total) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(4096, total - policy_->seen()));
      const PolicyChunk chunk{policy_->seen(), rows, true, total - policy_->seen() - rows};
      for (int t = 0; t < tables_; ++t) {
        const bool by_row = policy_->traits().spec.starts_with("tova");
        for (int row = by_row ? 0 : std::max(0, rows - 64); row < rows; ++row) {
          if (!wants_row(*policy_, chunk, row)) continue;
          masses_.assign(
              reductions_of(*policy_).size(),
              std::span(mass_).first(static_cast<std::size_t>(held_[static_cast<std::size_t>(t)] + row + 1)));
          policy_->as<ObservesMasses>()->observe(chunk, t, row, masses_);
        }
        plan_.clear();
        policy_->end_chunk(chunk, t, plan_);
        note(t, rows);
      }
      for (int t = 0; t < tables_; ++t) {
        plan_.clear();
        policy_->finish_chunk(chunk, t, plan_);
        note(t, 0);
      }
    }
  }

  std::unique_ptr<RetentionPolicy> policy_;
  std::int64_t tokens_;
  int tables_ = 1;
  std::vector<double> mass_;
  std::vector<std::span<const double>> masses_;
  std::vector<std::int64_t> held_;
  KeepPlan plan_;
};

int run(int steps, std::int64_t small, std::int64_t large) {
  const auto specs = [](std::int64_t n) {
    return std::vector<std::string>{fmt::format("h2o:budget={},recent={}", n, n / 2),
                                    fmt::format("h2o:budget={},recent={},heads=independent", n, n / 2),
                                    fmt::format("tova:budget={}", n),
                                    fmt::format("cascade:size={},n=4,sinks=4", n - 4),
                                    fmt::format("lethe:start={},max={}", n, 2 * n),
                                    fmt::format("snapkv:budget={}", n),
                                    fmt::format("pyramidkv:budget={}", n),
                                    fmt::format("cake:budget={}", n),
                                    fmt::format("random:budget={}", n)};
  };
  CacheEviction caches;
  bool small_enough = true;
  double touched = 0;
  for (const std::int64_t n : {small, large}) {
    const double attention = attention_seconds(n, std::min(steps, 100), caches);
    fmt::print("{} tokens: attention {:.1f} us\n", n, attention * 1e6);
    for (const std::string& spec : specs(n)) {
      Layer layer(spec, n);
      std::vector<double> seconds;
      for (int i = 0; i < steps; ++i) {
        caches.run();
        touched += layer.touch_masses();
        seconds.push_back(layer.step());
      }
      std::ranges::sort(seconds);
      seconds.resize(seconds.size() - seconds.size() / 100);
      double mean = 0;
      for (const double s : seconds) mean += s / static_cast<double>(seconds.size());
      const double scoring = median(seconds);
      const bool passed = std::max(scoring, mean) <= kMostShare * attention;
      small_enough = small_enough && passed;
      fmt::print("  {:<48} {:>8} held {:>10.1f} us, mean {:>10.1f} {:>6.2f}% {}\n", spec, layer.held(), scoring * 1e6,
                 mean * 1e6, 100 * std::max(scoring, mean) / attention, passed ? "pass" : "FAIL");
    }
  }
  fmt::print("{} (at most {}%; checksum {:.0f})\n", small_enough ? "pass" : "FAIL", 100 * kMostShare,
             static_cast<double>(caches.sum()) + touched);
  return small_enough ? 0 : 1;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int steps = argument(1, 200), small = argument(2, 2048), large = argument(3, 131072);
  if (steps < 1 || small < 256 || large < small) {
    fmt::print(stderr, "scoring [STEPS] [SMALL] [LARGE]: numbers of tokens, 256 or more\n");
    return 2;
  }
  return kvasir::bench::run(steps, small, large);
}

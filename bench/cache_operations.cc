// What keeping a bounded cache costs per token and layer, beside the model: appending, the table's description, the
// policy's scores and decisions, moving and rotating; against a cache that copies (copying_cache.h).
//
//   cache_operations [TOKENS] [ROUNDS]
//
// One layer of 8 KV heads of 128 (Llama 3.1 8B) and 4 query heads each, f16, one thread. Each row first runs until its
// cache is full, then rounds of 256 steps take turns. Printed: medians over rounds, with the 10th and 90th percentile.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/attention_mass.h"
#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "copying_cache.h"
#include "kv/describe_table.h"
#include "retention/registry.h"
#include "sequence/sequence.h"

namespace kvasir::bench {
namespace {

constexpr int kKvHeads = 8;
constexpr int kHeads = 32;
constexpr int kHeadDim = 128;
constexpr int kSteps = 256;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Row {
  std::string name;
  std::function<void()> step;
  std::vector<double> seconds = {};  // per step, one a round
};

// A layer under a policy, with attention that decays with age and has heavy hitters.
class Layer {
 public:
  Layer(const std::string& spec, std::int64_t most)
      : policy_(std::move(*make_policy(spec))),
        store_(find_kernels("auto"), &threads_, {{kHeadDim, inverse_frequencies(), 1}}) {
    cache_ = std::move(*KvCache::create(kShape, std::uint64_t{1} << 28, &store_));
    sequence_.emplace(cache_->new_sequence(sequence_layout(*policy_)));
    policy_->begin({1, 1, kHeads});
    std::mt19937_64 random(1);
    for (std::int64_t i = 0; i < most + 64; ++i) {
      const double age = static_cast<double>(i);
      weights_.push_back(static_cast<float>(std::exp(-age / 64) + (random() % 37 == 0 ? 0.05 : 0) + 1e-4));
    }
    std::reverse(weights_.begin(), weights_.end());
    mass_.resize(weights_.size());
  }

  void step() {
    PageTable& table = sequence_->only_table();
    const PolicyChunk chunk{table.next_index(), 1, false, 0};
    check(sequence_->append(1));
    IndexRange hidden;
    find_hidden(*policy_, chunk, {&hidden, 1});
    describe_table(table, {&hidden, 1}, 0, &description_);
    const std::vector<MassReduction>& reductions = reductions_of(*policy_);
    if (!reductions.empty()) {
      const auto n = static_cast<std::size_t>(table.length());
      const float* heads[kHeads];
      std::fill_n(heads, kHeads, weights_.data() + weights_.size() - n);
      const std::span<double> mass = std::span(mass_).first(n);
      masses_.assign(reductions.size(), mass);
      for (const MassReduction reduction : reductions) reduce_mass(heads, static_cast<int>(n), reduction, mass);
      policy_->as<ObservesMasses>()->observe(chunk, 0, 0, masses_);
    }
    plan_.clear();
    policy_->end_chunk(chunk, 0, plan_);
    check(table.apply(plan_));
  }

  std::int64_t held() const { return sequence_->only_table().length(); }

 private:
  inline static const KvCacheShape kShape{1, kKvHeads, {kHeadDim, 32, KvType::kF16}};

  static std::vector<double> inverse_frequencies() {
    std::vector<double> frequencies;
    for (int i = 0; i < kHeadDim / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / kHeadDim));
    return frequencies;
  }

  static void check(const Status& status) {
    if (status.ok()) return;
    fmt::print(stderr, "cache_operations: {}\n", status.message());
    std::exit(1);
  }

  std::unique_ptr<RetentionPolicy> policy_;
  ThreadPool threads_{1};
  CpuPageStore store_;
  std::unique_ptr<KvCache> cache_;
  std::optional<KvSequence> sequence_;
  BatchTable description_;
  KeepPlan plan_;
  std::vector<float> weights_;
  std::vector<double> mass_;
  std::vector<std::span<const double>> masses_;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

int run(int tokens, int rounds) {
  const int window = tokens - 4;
  const std::vector<std::string> specs = {
      fmt::format("streaming:sinks=4,window={}", window),
      fmt::format("cascade:size={},n=1,sinks=4", window),
      fmt::format("cascade:size={},n=4,sinks=4", window),
      fmt::format("h2o:budget={},recent={},sinks=4,pos=original", tokens, tokens / 2),
      fmt::format("h2o:budget={},recent={},sinks=4,pos=compact", tokens, tokens / 2),
      fmt::format("lethe:start={},max={},pos=original", tokens / 2, tokens),
      fmt::format("lethe:start={},max={},pos=compact", tokens / 2, tokens),
      fmt::format("tova:budget={},pos=compact", tokens),
  };
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<Row> rows;
  CopyingCache copying(kKvHeads, kHeadDim, tokens);
  const std::vector<std::uint16_t> added(kKvHeads * kHeadDim, 0x3800);
  rows.push_back({"slice and concatenate", [&] { copying.step(4, added.data(), added.data()); }});
  rows.push_back({"rotate all keys", [&] { copying.rotate(); }});
  std::vector<std::byte> from(copying.bytes_moved_by_step() / 2), to(from.size());
  rows.push_back({"memcpy of as many bytes", [&] { std::memcpy(to.data(), from.data(), from.size()); }});
  for (const std::string& spec : specs) {
    layers.push_back(std::make_unique<Layer>(spec, tokens));
    Layer* layer = layers.back().get();
    for (int i = 0; i < 3 * tokens; ++i) layer->step();
    rows.push_back({spec, [layer] { layer->step(); }});
  }
  for (int round = 0; round < rounds; ++round)
    for (Row& row : rows) {
      const double start = now();
      for (int i = 0; i < kSteps; ++i) row.step();
      row.seconds.push_back((now() - start) / kSteps);
    }
  const double concatenate = quantile(rows[0].seconds, 0.5);
  const double rotate = quantile(rows[1].seconds, 0.5);
  const double copy = quantile(rows[2].seconds, 0.5);
  const auto rate = [](std::size_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  const double limit = rate(copying.bytes_moved_by_step(), copy);
  fmt::print("{} tokens, {} KV heads of {}, f16; microseconds per token and layer, medians of {} rounds\n\n", tokens,
             kKvHeads, kHeadDim, rounds);
  fmt::print("{:<48} {:>9} {:>9} {:>9} {:>9}\n", "", "median", "p10", "p90", "baseline/");
  for (const Row& row : rows) {
    const double median = quantile(row.seconds, 0.5);
    fmt::print("{:<48} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.1f}x\n", row.name, median * 1e6,
               quantile(row.seconds, 0.1) * 1e6, quantile(row.seconds, 0.9) * 1e6, (concatenate + rotate) / median);
  }
  fmt::print("\nbaseline = slice and concatenate + rotate all keys: {:.1f} us\n", (concatenate + rotate) * 1e6);
  fmt::print("copy bandwidth {:.1f} GB/s (read and written); concatenating reaches {:.0f}%, rotating {:.0f}%\n", limit,
             100 * rate(copying.bytes_moved_by_step(), concatenate) / limit,
             100 * rate(copying.bytes_moved_by_rotate(), rotate) / limit);
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  const int tokens = argc > 1 ? std::atoi(argv[1]) : 2048;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  if (tokens < 64 || tokens % 4 != 0 || rounds < 1 || argc > 3) {
    fmt::print(stderr, "usage: cache_operations [TOKENS, a multiple of 4 from 64 on] [ROUNDS]\n");
    return 2;
  }
  if (kvasir::avx512_kernels() == nullptr) {
    fmt::print(stderr, "cache_operations: the baseline needs AVX-512, which this machine lacks\n");
    return 2;
  }
  return kvasir::bench::run(tokens, rounds);
}

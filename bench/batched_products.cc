// Time of the matrix products of one decode step of a Llama-3.2-1B shape, for 1 to 16 rows (sequences).
//
//   batched_products [--threads N] [--rounds N] [--kernels NAME] [--types q8_0,q4_k,...]
//
// Weights are read from memory, not from a cache: successive products take successive matrices of a buffer of at least
// 256 MiB. Rounds interleave all row counts, so that a busy machine slows all alike. Printed: the lower quartile over
// rounds of each product, in microseconds per row, and the sum over a model's products, in milliseconds per step.
// One thread is timed by its own CPU time, more threads by the wall clock.
#include <fmt/core.h>
#include <sys/mman.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace kvasir::bench {
namespace {

constexpr int kMostRows = 16;
constexpr std::size_t kPoolBytes = std::size_t{256} << 20;

double now(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Random rows in both forms, for the largest number of inputs.
class Input {
 public:
  Input(const KernelTable& table, int rows, int inputs) : rows_(rows), inputs_(inputs) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    x_.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs));
    for (float& x : x_) x = uniform(random);
    const std::size_t places = static_cast<std::size_t>(kRowGroup) * static_cast<std::size_t>(inputs / kQ8Block);
    float* scale = floats_.ensure(2 * places);
    std::int32_t* sum = sums_.ensure(3 * places);
    const MutableQ8Rows q8{quants_.ensure(places * kQ8Block), scale, scale + places, sum, sum + places};
    for (int r = 0; r < rows; ++r)
      table.quantize_q8(x_.data() + static_cast<std::size_t>(r) * static_cast<std::size_t>(inputs), inputs,
                        q8.at(static_cast<std::size_t>(r)));
    q8_ = {q8.quants, q8.scale, q8.scaled_sum, q8.sum, q8.half_sum};
  }

  Activations view() const { return {rows_, inputs_, x_.data(), q8_}; }

 private:
  int rows_;
  int inputs_;
  std::vector<float> x_;
  AlignedBuffer<std::int8_t> quants_;
  AlignedBuffer<float> floats_;
  AlignedBuffer<std::int32_t> sums_;
  Q8Rows q8_;
};

struct Shape {
  int inputs;
  int outputs;
  auto operator<=>(const Shape&) const = default;
};

struct Product {
  DType type;
  Shape shape;
  auto operator<=>(const Product&) const = default;
};

// Products of a step, with how many of each.
using Step = std::map<Product, int>;

constexpr Shape kQueryKeyValue{2048, 3072};
constexpr Shape kQueryKey{2048, 2560};
constexpr Shape kValue{2048, 512};
constexpr Shape kOutput{2048, 2048};
constexpr Shape kGateUp{2048, 16384};
constexpr Shape kDown{8192, 2048};
constexpr Shape kVocabulary{2048, 128256};

Step uniform_step(DType type) {
  return {{{type, kQueryKeyValue}, 16},
          {{type, kOutput}, 16},
          {{type, kGateUp}, 16},
          {{type, kDown}, 16},
          {{type, kVocabulary}, 1}};
}

// Q4_K_M: Q6_K for the vocabulary and for half of the layers' values and down projections.
Step q4_k_m_step() {
  return {{{DType::kQ4_K, kQueryKeyValue}, 8}, {{DType::kQ4_K, kQueryKey}, 8},  {{DType::kQ6_K, kValue}, 8},
          {{DType::kQ4_K, kOutput}, 16},       {{DType::kQ4_K, kGateUp}, 16},   {{DType::kQ4_K, kDown}, 8},
          {{DType::kQ6_K, kDown}, 8},          {{DType::kQ6_K, kVocabulary}, 1}};
}

class Bench {
 public:
  Bench(const KernelTable& table, int threads) : table_(table), threads_(threads), pool_(threads) {
    auto* words = reinterpret_cast<std::uint16_t*>(weights_.get());
    // As the engine asks for its weights.
    madvise(words, kWeightBytes, MADV_HUGEPAGE);
    // Bits of weights that are small numbers in every type, so that no sum overflows.
    for (std::size_t i = 0; i < kWeightBytes / 2; ++i)
      words[i] = static_cast<std::uint16_t>(0x2c00 + i * 2654435761u % 256);
    for (const int inputs : {2048, 8192})
      for (int rows = 1; rows <= kMostRows; ++rows) inputs_.try_emplace({inputs, rows}, table, rows, inputs);
    out_.resize(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(kVocabulary.outputs));
  }

  // Seconds of one product.
  double time(const Product& product, int rows) {
    const Shape shape = product.shape;
    const std::size_t bytes = kPanelPacking.bytes(product.type, shape.outputs, shape.inputs);
    if (at_ + bytes > std::max(kPoolBytes, bytes)) at_ = 0;
    const PackedMatrix weights{product.type, shape.outputs, shape.inputs, weights_.get() + at_};
    at_ += (bytes + 63) / 64 * 64;
    const Activations x = inputs_.at({shape.inputs, rows}).view();
    const int panels = weights.panels();
    const int share = std::max(8, (panels / (threads_ * 4) + 7) / 8 * 8);  // as Transformer::multiply
    const double begin = now(threads_);
    pool_.parallel_for((panels + share - 1) / share, [&](int task) {
      table_.matmul(weights, x, task * share, std::min(panels, (task + 1) * share), out_.data(),
                    static_cast<std::size_t>(shape.outputs));
    });
    return now(threads_) - begin;
  }

 private:
  static constexpr std::align_val_t kHugePage{std::size_t{2} << 20};
  static constexpr std::size_t kWeightBytes = std::size_t{1100} << 20;  // the vocabulary's in F32
  const KernelTable& table_;
  int threads_;
  ThreadPool pool_;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kHugePage); }
  };
  std::unique_ptr<std::byte, Free> weights_{static_cast<std::byte*>(::operator new(kWeightBytes, kHugePage))};
  std::map<std::pair<int, int>, Input> inputs_;
  std::vector<float> out_;
  std::size_t at_ = 0;
};

void run(const KernelTable& table, int threads, int rounds, const std::vector<std::string>& types) {
  std::map<std::string, Step> steps;
  for (const std::string& name : types) {
    if (name == "q4_k_m") steps[name] = q4_k_m_step();
    for (const DType type : all_dtypes())
      if (CLI::detail::to_lower(std::string(dtype_traits(type).name)) == name) steps[name] = uniform_step(type);
  }
  std::map<Product, std::vector<std::vector<double>>> seconds;
  for (const auto& [name, step] : steps)
    for (const auto& [product, count] : step) seconds[product].resize(kMostRows + 1);
  Bench bench(table, threads);
  for (int round = 0; round < rounds; ++round)
    for (auto& [product, of_rows] : seconds)
      for (int rows = 1; rows <= kMostRows; ++rows)
        // Small products more than once a round: a single one is over before the machine's noise is.
        for (int i = 0; i < (product.shape.outputs > 100000 ? 1 : 4); ++i)
          of_rows[static_cast<std::size_t>(rows)].push_back(bench.time(product, rows));

  std::map<Product, std::vector<double>> quartile;
  fmt::print("microseconds per row\n{:<22}", "rows");
  for (int rows = 1; rows <= kMostRows; ++rows) fmt::print("{:>8}", rows);
  for (auto& [product, of_rows] : seconds) {
    fmt::print("\n{:<22}",
               fmt::format("{} {}x{}", dtype_traits(product.type).name, product.shape.inputs, product.shape.outputs));
    std::vector<double>& of_product = quartile[product];
    of_product.resize(kMostRows + 1);
    for (std::size_t rows = 1; rows <= kMostRows; ++rows) {
      std::vector<double>& samples = of_rows[rows];
      const auto nth = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
      std::nth_element(samples.begin(), nth, samples.end());
      of_product[rows] = *nth;
      fmt::print("{:>8.1f}", *nth * 1e6 / static_cast<double>(rows));
    }
  }
  fmt::print("\n\nmilliseconds per step of all products, and tokens per second\n");
  for (const auto& [name, step] : steps) {
    std::vector<double> sum(kMostRows + 1);
    for (const auto& [product, count] : step)
      for (std::size_t rows = 1; rows <= kMostRows; ++rows) sum[rows] += count * quartile[product][rows];
    fmt::print("{:<22}", name);
    for (std::size_t rows = 1; rows <= kMostRows; ++rows) fmt::print("{:>8.1f}", sum[rows] * 1e3);
    fmt::print("\n{:<22}", "");
    for (std::size_t rows = 1; rows <= kMostRows; ++rows) fmt::print("{:>8.1f}", static_cast<double>(rows) / sum[rows]);
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  CLI::App program{"Time of the matrix products of a decode step of a Llama-3.2-1B shape, for 1 to 16 rows."};
  int threads = 1;
  int rounds = 15;
  std::string kernels = "auto";
  std::vector<std::string> types{"q8_0", "q4_k_m", "f16"};
  program.add_option("--threads", threads)->check(CLI::Range(1, 256))->capture_default_str();
  program.add_option("--rounds", rounds)->check(CLI::Range(1, 10000))->capture_default_str();
  program.add_option("--kernels", kernels, "Kernel table")->capture_default_str();
  program.add_option("--types", types, "Weight types, or q4_k_m for that mixture")
      ->delimiter(',')
      ->capture_default_str();
  CLI11_PARSE(program, argc, argv);
  const kvasir::KernelTable* table = kvasir::find_kernels(kernels);
  if (table == nullptr) {
    fmt::print(stderr, "no kernel table '{}' runs here\n", kernels);
    return 2;
  }
  kvasir::bench::run(*table, threads, rounds, types);
  return 0;
}

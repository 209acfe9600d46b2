// Speed of the kernels that take nearly all time, for every table that runs here: matmul and attend on one thread and
// pages that stay in the cache; decode: attend for one row over more pages than the cache holds, on one and two threads
// (a 1B model of 16 layers and 8 KV heads at 16,384 tokens); encode_page; what is done to a row besides.
// Counters: bytes_per_second of weights or pages read (what one row waits for), MAC/s (what many rows wait for).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace kvasir {
namespace {

std::vector<float> random_floats(std::size_t count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> out(count);
  for (float& x : out) x = uniform(random);
  return out;
}

void set_counters(benchmark::State& state, double macs, double bytes) {
  using benchmark::Counter;
  state.counters["MAC/s"] = Counter(macs, Counter::kIsIterationInvariantRate);
  state.counters["B/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
}

void bench_matmul(benchmark::State& state, const KernelTable& table, DType type, int inputs, int outputs, int rows) {
  // Bits of weights that are small numbers in every type, so that no sum overflows.
  AlignedBuffer<std::uint16_t> packed;
  const std::size_t bytes = kPanelPacking.bytes(type, outputs, inputs);
  std::uint16_t* words = packed.ensure(bytes / 2);
  for (std::size_t i = 0; i < bytes / 2; ++i) words[i] = static_cast<std::uint16_t>(0x2c00 + i * 2654435761u % 256);
  // Scales of eight bits are exponents.
  if (type == DType::kMXFP4)
    for (std::size_t i = 0; i < bytes / 2; ++i) words[i] = static_cast<std::uint16_t>(0x7070 + words[i] % 16);
  const PackedMatrix weights{type, outputs, inputs, reinterpret_cast<const std::byte*>(words)};

  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs));
  const auto blocks = static_cast<std::size_t>(inputs / kQ8Block);
  const std::size_t places = static_cast<std::size_t>((rows + kRowGroup - 1) / kRowGroup * kRowGroup) * blocks;
  AlignedBuffer<std::int8_t> quants;
  AlignedBuffer<float> floats;
  AlignedBuffer<std::int32_t> sums;
  float* scale = floats.ensure(2 * places);
  std::int32_t* sum = sums.ensure(3 * places);
  const MutableQ8Rows q8{quants.ensure(places * kQ8Block), scale, scale + places, sum, sum + places};
  for (int r = 0; r < rows; ++r) {
    const std::size_t at =
        static_cast<std::size_t>(r / kRowGroup) * blocks * kRowGroup + static_cast<std::size_t>(r % kRowGroup);
    table.quantize_q8(x.data() + static_cast<std::size_t>(r) * static_cast<std::size_t>(inputs), inputs, q8.at(at));
  }
  Activations activations;
  activations.rows = rows;
  activations.inputs = inputs;
  activations.f32 = x.data();
  activations.q8 = {q8.quants, q8.scale, q8.scaled_sum, q8.sum, q8.half_sum};
  std::vector<float> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(outputs));
  for (auto _ : state) {
    table.matmul(weights, activations, 0, weights.panels(), out.data(), static_cast<std::size_t>(outputs));
    benchmark::ClobberMemory();
  }
  set_counters(state, static_cast<double>(rows) * inputs * outputs, static_cast<double>(bytes));
}

constexpr std::uint32_t kJoined = 0xeeee;  // four pages of 32 slots are a step

// 512 entries of full pages, in partials as the engine makes them.
void bench_attend(benchmark::State& state, const KernelTable& table, KvType type, int rows) {
  constexpr int kEntries = 512;
  constexpr int kGroup = 4;
  constexpr int kHeadDim = 64;
  const PageFormat shape{kHeadDim, 32, type};
  const PageFormat open = shape.open();
  std::vector<std::byte> written(open.bytes());
  AlignedBuffer<std::byte> memory;
  memory.ensure(shape.bytes() * kEntries);
  const std::vector<float> noise = random_floats(kHeadDim + 977);
  std::vector<const std::byte*> pages;
  for (int e = 0; e < kEntries; ++e) {
    std::byte* page = memory.data() + shape.bytes() * static_cast<std::size_t>(e);
    for (int s = 0; s < shape.slots; ++s) {
      const float* token = noise.data() + (e * 32 + s) * 31 % 977;
      table.store_kv(open, open == shape ? page : written.data(), s, token, token);
    }
    if (shape.encoded()) encode_page(shape, written.data(), slot_range(0, shape.slots), page);
    pages.push_back(page);
  }
  const auto queries = static_cast<std::size_t>(rows * kGroup);
  const std::vector<float> q = random_floats(queries * kHeadDim);
  const std::vector<SlotMask> masks(static_cast<std::size_t>(rows) * kPartialEntries, slot_range(0, shape.slots));
  const std::vector<const PageFormat*> formats(kPartialEntries, &shape);
  std::vector<float> maximum(queries, -1e30F);
  std::vector<float> sum(queries);
  std::vector<float> weighted(queries * kHeadDim);
  for (auto _ : state) {
    for (int e = 0; e < kEntries; e += kPartialEntries) {
      AttentionPartial partial;
      partial.head_dim = kHeadDim;
      partial.slots = shape.slots;
      partial.formats = formats.data();
      partial.rows = rows;
      partial.group = kGroup;
      partial.q = q.data();
      partial.q_row_stride = kGroup * kHeadDim;
      partial.entries = kPartialEntries;
      partial.joined = kJoined;
      partial.pages = pages.data() + e;
      partial.masks = masks.data();
      partial.mask_row_stride = kPartialEntries;
      table.attend(partial, {maximum.data(), sum.data(), weighted.data()});
    }
    benchmark::ClobberMemory();
  }
  const double tokens = 1.0 * kEntries * shape.slots;
  set_counters(state, tokens * 2 * kHeadDim * static_cast<double>(queries),
               tokens * static_cast<double>(shape.slot_bytes()));
}

// One row of every lane over its own pages, in the partials and order of the engine.
void bench_decode(benchmark::State& state, const KernelTable& table, KvType type, int threads) {
  constexpr std::size_t kLayers = 16;
  constexpr std::size_t kHeads = 8;
  constexpr std::size_t kEntries = 512;
  constexpr int kGroup = 4;
  constexpr int kHeadDim = 64;
  const PageFormat shape{kHeadDim, 32, type};
  const PageFormat open = shape.open();
  const std::size_t lane_bytes = kEntries * shape.bytes();
  AlignedBuffer<std::byte> memory;
  memory.ensure(kLayers * kHeads * lane_bytes);
  const std::vector<float> noise = random_floats(kHeadDim + 977);
  std::vector<std::byte> written(open.bytes());
  for (std::size_t e = 0; e < kEntries; ++e) {
    std::byte* page = memory.data() + shape.bytes() * e;
    for (int s = 0; s < shape.slots; ++s) {
      const float* token = noise.data() + (e * 32 + static_cast<std::size_t>(s)) * 31 % 977;
      table.store_kv(open, open == shape ? page : written.data(), s, token, token);
    }
    if (shape.encoded()) encode_page(shape, written.data(), slot_range(0, shape.slots), page);
  }
  for (std::size_t lane = 1; lane < kLayers * kHeads; ++lane)
    std::copy_n(memory.data(), lane_bytes, memory.data() + lane * lane_bytes);
  const std::vector<float> q = random_floats(kGroup * kHeadDim);
  const std::vector<SlotMask> masks(kPartialEntries, slot_range(0, shape.slots));
  const std::vector<const PageFormat*> formats(kPartialEntries, &shape);
  ThreadPool pool(threads);
  for (auto _ : state)
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      pool.parallel_for(static_cast<int>(kHeads * kEntries / kPartialEntries), [&](int index) {
        const std::byte* pages[kPartialEntries];
        const std::size_t first =
            layer * kHeads * kEntries + static_cast<std::size_t>(index) * static_cast<std::size_t>(kPartialEntries);
        for (std::size_t e = 0; e < kPartialEntries; ++e) pages[e] = memory.data() + (first + e) * shape.bytes();
        float maximum[kGroup], sum[kGroup] = {}, weighted[kGroup * kHeadDim] = {};
        std::fill_n(maximum, kGroup, -1e30F);
        AttentionPartial partial;
        partial.head_dim = kHeadDim;
        partial.slots = shape.slots;
        partial.formats = formats.data();
        partial.rows = 1;
        partial.group = kGroup;
        partial.q = q.data();
        partial.q_row_stride = kGroup * kHeadDim;
        partial.entries = kPartialEntries;
        partial.joined = kJoined;
        partial.pages = pages;
        const std::size_t next = first + kPartialEntries * static_cast<std::size_t>(threads);
        for (std::size_t i = 0; i < NextPages::kMost && next + i < kLayers * kHeads * kEntries; ++i)
          partial.next_pages.of[i] = memory.data() + (next + i) * shape.bytes();
        partial.masks = masks.data();
        partial.mask_row_stride = kPartialEntries;
        table.attend(partial, {maximum, sum, weighted});
        benchmark::DoNotOptimize(weighted);
      });
  const double tokens = 1.0 * kLayers * kHeads * kEntries * shape.slots;
  set_counters(state, tokens * 2 * kHeadDim * kGroup, tokens * static_cast<double>(shape.slot_bytes()));
}

void bench_encode(benchmark::State& state, KvType type) {
  constexpr int kHeadDim = 64;
  const PageFormat shape{kHeadDim, 32, type};
  std::vector<std::byte> open(shape.open().bytes());
  std::vector<std::byte> page(shape.bytes());
  const std::vector<float> noise = random_floats(kHeadDim + 977);
  for (int s = 0; s < shape.slots; ++s)
    generic_kernels().store_kv(shape.open(), open.data(), s, noise.data() + s * 31 % 977, noise.data() + s * 17 % 977);
  for (auto _ : state) {
    encode_page(shape, open.data(), slot_range(0, shape.slots), page.data());
    benchmark::ClobberMemory();
  }
}

std::string joined(const std::vector<std::string_view>& parts) {
  std::string out;
  for (const std::string_view part : parts) {
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

// One row of 8,192 floats, which stays in the nearest caches.
template <class Run>
void bench_row(benchmark::State& state, const Run& run) {
  constexpr int kFloats = 8192;
  const std::vector<float> x = random_floats(kFloats);
  std::vector<float> out(kFloats);
  for (auto _ : state) {
    run(x.data(), kFloats, out.data());
    benchmark::ClobberMemory();
  }
  set_counters(state, kFloats, kFloats * sizeof(float));
}

void register_rows(const KernelTable& table) {
  const auto add = [&](std::string_view kernel, const auto& run) {
    benchmark::RegisterBenchmark(joined({"row", table.name, kernel}).c_str(), [=](benchmark::State& state) {
      bench_row(state, run);
    })->Unit(benchmark::kNanosecond);
  };
  const auto activate = [&](ActivationFunction function) {
    return [=, of_table = table.activate](const float* x, int n, float* out) { of_table(function, x, x, n, out); };
  };
  add("rms_norm", [=, of_table = table.rms_norm](const float* x, int n, float* out) { of_table(x, x, n, 1e-5F, out); });
  add("layer_norm",
      [=, of_table = table.layer_norm](const float* x, int n, float* out) { of_table(x, x, x, n, 1e-5F, out); });
  add("silu", activate(ActivationFunction::kSilu));
  add("gelu", activate(ActivationFunction::kGelu));
  add("gelu_tanh", activate(ActivationFunction::kGeluTanh));
  add("add", [=, of_table = table.add](const float* x, int n, float* out) { of_table(out, x, n); });
}

void register_all() {
  for (const std::string_view name : kernel_names()) {
    const KernelTable* table = find_kernels(name);
    register_rows(*table);
    for (const DType type : all_dtypes()) {
      for (const int outputs : {2048, 8192}) {
        for (const int rows : {1, 512}) {
          const std::string shape = "2048x" + std::to_string(outputs);
          const std::string count = "rows:" + std::to_string(rows);
          const std::string title = joined({"matmul", name, dtype_traits(type).name, shape, count});
          benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
            bench_matmul(state, *table, type, 2048, outputs, rows);
          })->Unit(benchmark::kMicrosecond);
        }
      }
    }
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kI16, KvType::kQ8, KvType::kQ4,
                              KvType::kQ4O, KvType::kQ3, KvType::kQ2}) {
      for (const int rows : {1, 64}) {
        const std::string count = "rows:" + std::to_string(rows);
        const std::string title = joined({"attend", name, kv_type_name(type), count});
        benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
          bench_attend(state, *table, type, rows);
        })->Unit(benchmark::kMicrosecond);
      }
      for (const int threads : {1, 2}) {
        const std::string title = joined({"decode", name, kv_type_name(type), "threads:" + std::to_string(threads)});
        benchmark::RegisterBenchmark(title.c_str(),
                                     [=](benchmark::State& state) { bench_decode(state, *table, type, threads); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  for (const KvType type : {KvType::kQ8, KvType::kQ4, KvType::kQ4O, KvType::kQ3, KvType::kQ2})
    benchmark::RegisterBenchmark(joined({"encode_page", kv_type_name(type)}).c_str(), [=](benchmark::State& state) {
      bench_encode(state, type);
    })->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kvasir::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

#include "eval/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/check.h"
#include "base/status.h"
#include "base/system_memory.h"

namespace kvasir {
namespace {

constexpr std::size_t kMost = std::size_t{512} << 20;
constexpr std::size_t kShare = std::size_t{1} << 20;  // bytes that a thread reads per task
constexpr int kSums = 8;                              // a cache line, fetched while another is read: two in a row
                                                      // are read more slowly
constexpr std::size_t kAhead = 8192;                  // bytes; as far as the kernels prefetch weights

}  // namespace

void ReadBandwidth::Unmap::operator()(std::uint64_t* memory) const {
  ::munmap(memory, bytes);
}

Result<ReadBandwidth> ReadBandwidth::make(ThreadPool& threads) {
  const std::size_t bytes = std::max(kShare, std::min<std::size_t>(kMost, memory_bound() / 4) / kShare * kShare);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return exhausted("there is no memory to measure the speed of memory with");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  ReadBandwidth bandwidth(threads, Memory(static_cast<std::uint64_t*>(memory), Unmap{bytes}));
  // Pages that were never written all map to one page.
  std::fill_n(bandwidth.memory_.get(), bytes / sizeof(std::uint64_t), std::uint64_t{1});
  return bandwidth;
}

double ReadBandwidth::measure() {
  const std::size_t bytes = memory_.get_deleter().bytes;
  std::atomic<std::uint64_t> total{0};
  const auto start = std::chrono::steady_clock::now();
  threads_->parallel_for(static_cast<int>(bytes / kShare), [&](int share) {
    constexpr std::size_t kWords = kShare / sizeof(std::uint64_t);
    const std::uint64_t* words = memory_.get() + static_cast<std::size_t>(share) * kWords;
    std::uint64_t sums[kSums] = {};
    for (std::size_t i = 0; i < kWords; i += kSums) {
      __builtin_prefetch(reinterpret_cast<const std::byte*>(words + i) + kAhead, 0, 2);
      for (int s = 0; s < kSums; ++s) sums[s] += words[i + static_cast<std::size_t>(s)];
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t s : sums) sum += s;
    total += sum;  // used, so that the compiler keeps the reads
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  KVASIR_CHECK(total == bytes / sizeof(std::uint64_t));
  return static_cast<double>(bytes) / seconds / 1e9;
}

}  // namespace kvasir

// Measures how fast a pool's threads read memory. This limits whatever reads more than caches hold, such as decoding.
// Thread-safety: none; uses the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "kvasir/status.h"

namespace kvasir {

class ReadBandwidth {
 public:
  // Takes 512 MiB of memory, or a quarter of what is available. Errors: kResourceExhausted.
  static Result<ReadBandwidth> make(ThreadPool& threads);

  // Reads all of it once. Returns 10^9 bytes per second.
  double measure();

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::uint64_t* memory) const;
  };
  using Memory = std::unique_ptr<std::uint64_t[], Unmap>;

  ReadBandwidth(ThreadPool& threads, Memory memory) : threads_(&threads), memory_(std::move(memory)) {}

  ThreadPool* threads_;
  Memory memory_;
};

}  // namespace kvasir

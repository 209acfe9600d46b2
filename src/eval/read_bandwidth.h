// Measures how fast the threads of a pool read memory: the limit of whatever reads more than caches hold, as decoding
// does. Thread-safety: none; uses the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "kvasir/status.h"

namespace kvasir {

class ReadBandwidth {
 public:
  // Takes 512 MiB of memory, or a quarter of what the machine has left. Errors: kResourceExhausted.
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

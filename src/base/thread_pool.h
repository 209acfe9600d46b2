// A fixed set of threads that share the indices of a loop. Results do not depend on which thread takes an index, since
// every kernel's output for an index is independent of the others.
// Thread-safety: one caller at a time; tasks must not call back into the pool, and must not throw.
#pragma once

#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvasir {

class ThreadPool {
 public:
  // `threads` counts the caller. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index) for every index in [0, count), each once, and returns when all have returned.
  template <class Task>
  void parallel_for(int count, Task&& task) {
    using Plain = std::remove_reference_t<Task>;
    run(
        count, [](void* context, int index) { (*static_cast<Plain*>(context))(index); },
        const_cast<std::remove_const_t<Plain>*>(&task));
  }

 private:
  using Call = void (*)(void* context, int index);
  void run(int count, Call call, void* context);
  void work(int count);
  void worker();

  std::vector<std::thread> workers_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  int count_ = 0;
  // Whether a region is open, and the number of workers inside. A region ends when all its indices are taken and all
  // workers inside have left. A worker that wakes up late finds the gate closed, and the caller does not wait for it.
  static constexpr unsigned kOpen = 1u << 31;
  alignas(64) std::atomic<unsigned> gate_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> next_{0};
  std::atomic<bool> stop_{false};
};

// Returns the number of cores this process may run on.
int usable_cores();

}  // namespace kvasir

#include "base/thread_pool.h"

#include <sched.h>

#include "base/check.h"

namespace kvasir {
namespace {

// Spins before a worker sleeps. Parallel regions follow each other within microseconds while a model runs.
constexpr int kSpins = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  KVASIR_CHECK(threads >= 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
  } catch (...) {
    // The destructor does not run after a throw, so the threads that did start are joined here.
    stop_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& t : workers_) t.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::work(int count) {
  for (int index = next_.fetch_add(1); index < count; index = next_.fetch_add(1)) call_(context_, index);
}

void ThreadPool::run(int count, Call call, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int i = 0; i < count; ++i) call(context, i);
    return;
  }
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0);
  gate_.store(kOpen);
  generation_.fetch_add(1);
  generation_.notify_all();
  work(count);
  gate_.fetch_and(~kOpen);
  for (int spins = 0; gate_.load() != 0; ++spins) {
    pause();
    if (spins > kSpins) std::this_thread::yield();
  }
}

void ThreadPool::worker() {
  unsigned seen = 0;
  for (;;) {
    unsigned now = generation_.load();
    for (int spins = 0; now == seen && spins < kSpins; ++spins) {
      pause();
      now = generation_.load();
    }
    while (now == seen) {
      generation_.wait(seen);
      now = generation_.load();
    }
    seen = now;
    if (stop_.load()) return;
    unsigned gate = gate_.load();
    while ((gate & kOpen) != 0 && !gate_.compare_exchange_weak(gate, gate + 1)) {
    }
    if ((gate & kOpen) == 0) continue;
    work(count_);
    gate_.fetch_sub(1);
  }
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  const unsigned cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

}  // namespace kvasir

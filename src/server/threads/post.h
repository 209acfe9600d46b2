// How the server's other threads hand what they have done to the I/O thread.
// Thread-safety: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>

namespace kvasir::server {

// Runs a function on the I/O thread. Thread-safe.
using Post = std::function<void(std::function<void()>)>;

// Calls `function` again, after a pause, for as long as it throws std::bad_alloc: for what must not be left out. What
// it does before it throws must do no harm twice.
template <class Function>
void until_there_is_memory(const Function& function) {
  while (true) {
    try {
      return function();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// Posts a function that somebody waits for. It is destroyed where it runs, as what it holds belongs to that thread.
inline void post_surely(const Post& post, const std::shared_ptr<std::function<void()>>& function) {
  until_there_is_memory([&] { post([function] { std::exchange(*function, nullptr)(); }); });
}

}  // namespace kvasir::server

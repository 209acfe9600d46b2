// How the server's other threads pass functions to the I/O thread.
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

// Calls `function`, and again after a pause while it throws std::bad_alloc: for steps that must not be omitted.
// Repeating its steps before the throw must do no harm.
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

// Posts a function that must run. It is destroyed on the thread that runs it, which owns the objects that it holds.
inline void post_surely(const Post& post, const std::shared_ptr<std::function<void()>>& function) {
  until_there_is_memory([&] { post([function] { std::exchange(*function, nullptr)(); }); });
}

}  // namespace kvasir::server

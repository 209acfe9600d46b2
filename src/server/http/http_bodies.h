// Counts the memory that request bodies take, by account.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <malloc.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace kvasir::server {

// Counts the bytes of request bodies by account. An account may hold at most as many bytes as are free: a single
// account gets at most half of the room, so that a later one always finds some.
class HttpBodies {
 public:
  explicit HttpBodies(std::size_t room = 0) : room_(room) {}

  void change(const std::string& account, std::size_t before, std::size_t now) {
    if (before == now) return;
    std::size_t& bytes = accounts_[account];
    bytes += now - before;
    all_ += now - before;
    if (bytes == 0) accounts_.erase(account);
  }
  bool fits(const std::string& account) const {
    const auto found = accounts_.find(account);
    return found == accounts_.end() || (all_ <= room_ && found->second <= room_ - all_);
  }

 private:
  std::size_t room_;
  std::size_t all_ = 0;
  std::map<std::string, std::size_t> accounts_;
};

// The bytes that one connection holds: the body of its request, then a whole answer.
class HeldBody {
 public:
  // `bodies` must outlive this.
  explicit HeldBody(HttpBodies& bodies) : bodies_(bodies) {}

  // REQUIRES: nothing is held.
  void set_account(std::string account) { account_ = std::move(account); }
  bool fits() const { return bodies_.fits(account_); }
  // Counts `bytes` in place of the earlier number. Processing a large body leaves much free memory in the heap, which
  // only malloc_trim returns to the system.
  void hold(std::size_t bytes) {
    constexpr std::size_t kLarge = 1 << 20;
    if (bytes < kLarge && bytes_ >= kLarge) ::malloc_trim(0);
    bodies_.change(account_, bytes_, bytes);
    bytes_ = bytes;
  }

 private:
  HttpBodies& bodies_;
  std::string account_;
  std::size_t bytes_ = 0;
};

}  // namespace kvasir::server

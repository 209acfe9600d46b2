// How much memory the bodies of requests take, and for whom.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace kvasir::server {

// Counts the bytes of request bodies by account. An account may hold as many bytes as are free: a single one gets half
// of the room at most, so that a later one always finds some.
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

}  // namespace kvasir::server

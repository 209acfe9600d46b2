// Notices a client that leaves while its request is answered.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>

namespace kvasir::server {

// A client that has only shut down its sending side may still read. TCP distinguishes it from a client that has gone
// only once bytes are sent, which are then answered with a reset. If the client has sent further bytes, which hide its
// leaving from a read, the connection's TCP state shows it.
class ClientWatch {
 public:
  enum class Sign {
    kHere,  // reported at least once a second
    kShut,  // it sends no more: send bytes to learn whether it has gone
    kGone,
  };
  using Tell = std::function<void(Sign)>;

  // `socket` must outlive this.
  explicit ClientWatch(boost::asio::ip::tcp::socket& socket) : socket_(socket), beat_(socket.get_executor()) {}

  // Watches until stop(). `tell` must keep this alive; it may call stop().
  void begin(const Tell& tell);
  void stop();

 private:
  void beat(const Tell& tell);

  boost::asio::ip::tcp::socket& socket_;
  boost::asio::steady_timer beat_;
  std::chrono::milliseconds beat_time_{};
  std::uint64_t number_ = 0;  // of begin() and stop() calls
};

}  // namespace kvasir::server

#include "server/http/client_watch.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kvasir::server {
namespace {

using Error = boost::system::error_code;

constexpr std::chrono::milliseconds kFirstBeat{10}, kLongestBeat{1000};

}  // namespace

void ClientWatch::begin(const Tell& tell) {
  ++number_;
  socket_.async_wait(boost::asio::ip::tcp::socket::wait_read, [this, tell, number = number_](Error error) {
    if (number_ != number) return;
    char byte = 0;
    const auto got = error ? -1 : ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (error || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return tell(Sign::kGone);
    // Bytes that stay unread would wake this again and again: from now on only beat() checks.
    if (got != 0) return;
    tell(Sign::kShut);
    if (number_ != number) return;
    beat_time_ = kFirstBeat;
    beat(tell);
  });
  beat_time_ = kLongestBeat;
  beat(tell);
}

void ClientWatch::stop() {
  ++number_;
  beat_.cancel();
}

// Its timer keeps the connection alive while an answer is under way, when nothing else may be pending.
void ClientWatch::beat(const Tell& tell) {
  beat_.expires_after(beat_time_);
  beat_time_ = std::min(2 * beat_time_, kLongestBeat);
  beat_.async_wait([this, tell, number = number_](Error error) {
    if (error || number_ != number) return;
    tcp_info info{};
    socklen_t size = sizeof info;
    const bool known = ::getsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
    if (known && info.tcpi_state == TCP_CLOSE) return tell(Sign::kGone);
    tell(known && info.tcpi_state == TCP_CLOSE_WAIT ? Sign::kShut : Sign::kHere);
    if (number_ == number) beat(tell);
  });
}

}  // namespace kvasir::server

#include "server/http/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <new>
#include <optional>

#include "base/status.h"
#include "server/http/http_connection.h"
#include "server/http/http_message.h"

namespace kvasir::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

// Raises the process's limit of descriptors as far as `connections` connections, and all else, need. Returns the number
// of connections for which the limit suffices.
int descriptors_for(int connections) {
  constexpr rlim_t kElse = 128;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kElse;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const rlim_t most = std::min(limit.rlim_cur, wanted);
  return static_cast<int>(most > 2 * kElse ? most - kElse : most / 2);
}

constexpr std::chrono::seconds kTimeToTake{2};  // for clients to take the answers that a drain cut off

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpLimits& limits, Handler handler, Admit admit)
      : acceptor_(shared_.context), retry_(shared_.context) {
    shared_.limits = limits;
    shared_.limits.connections = std::min(limits.connections, descriptors_for(limits.connections));
    shared_.handler = std::move(handler);
    shared_.admit = std::move(admit);
    shared_.bodies = HttpBodies(limits.bodies_bytes);
  }
  // Destroying the context drops the handlers that have not run, and with them the connections.
  ~HttpServerImpl() override {
    shared_.closed = {};
    for (HttpConnection* connection : std::vector(shared_.open.begin(), shared_.open.end())) connection->close();
  }

  Status listen(const std::string& address, std::uint16_t port) {
    Error error;
    const auto ip = asio::ip::make_address(address == "localhost" ? "127.0.0.1" : address, error);
    if (error)
      return invalid_argument("'{}' is not an address; give one such as 127.0.0.1, 0.0.0.0 or ::1", address)
          .about({"host"});
    const tcp::endpoint endpoint(ip, port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(1024, error);
    if (error)
      return make_status(StatusCode::kIo, "cannot listen on {} port {}: {}", address, port, error.message())
          .about({"host", "port"});
    return {};
  }

  std::uint16_t port() const override { return acceptor_.local_endpoint().port(); }
  int connections() const override { return static_cast<int>(shared_.open.size()); }

  void run() override {
    accept();
    while (true) {
      try {
        shared_.context.run();
        return;
      } catch (const std::bad_alloc&) {
        // The handler that needed memory is gone, with its connection; the others go on.
      }
    }
  }
  void stop() override { shared_.context.stop(); }
  void post(std::function<void()> function) override { asio::post(shared_.context, std::move(function)); }

  void every(std::chrono::milliseconds period, std::function<void()> function) override {
    auto timer = std::make_shared<asio::steady_timer>(shared_.context);
    repeat(std::move(timer), period, std::make_shared<std::function<void()>>(std::move(function)));
  }

  void drain(std::chrono::milliseconds deadline, std::function<void()> cut_off) override {
    post([this, deadline, cut_off = std::move(cut_off)] {
      if (shared_.draining) return;
      shared_.draining = true;
      Error ignored;
      acceptor_.close(ignored);
      shared_.closed = [this] {
        if (shared_.open.empty()) post([this] { stop(); });
      };
      const std::vector<HttpConnection*> open(shared_.open.begin(), shared_.open.end());
      for (HttpConnection* connection : open)
        if (connection->idle()) connection->close();
      if (open.empty()) return stop();
      deadline_.emplace(shared_.context, deadline);
      deadline_->async_wait([this, cut_off](Error error) {
        if (error) return;
        cut_off();
        shared_.cut_off = true;
        for_each_connection([](HttpConnection& connection) { connection.cut_off(); });
        deadline_->expires_after(kTimeToTake);
        deadline_->async_wait([this](Error cancelled) {
          if (cancelled) return;
          for_each_connection([](HttpConnection& connection) { connection.close(); });
          post([this] { stop(); });
        });
      });
    });
  }

 private:
  // Works on a copy: the function may close connections.
  template <class Function>
  void for_each_connection(const Function& function) {
    for (HttpConnection* connection : std::vector(shared_.open.begin(), shared_.open.end())) function(*connection);
  }

  static void repeat(const std::shared_ptr<asio::steady_timer>& timer, std::chrono::milliseconds period,
                     const std::shared_ptr<std::function<void()>>& function) {
    timer->expires_after(period);
    timer->async_wait([=](Error error) {
      if (error) return;
      try {
        (*function)();
      } catch (const std::bad_alloc&) {  // tried again after the next period
      }
      repeat(timer, period, function);
    });
  }

  void accept() {
    acceptor_.async_accept([this](Error error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // such as no more descriptors: tries again later
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](Error cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      take(std::move(socket));
      accept();
    });
  }

  void take(tcp::socket socket) {
    Error error;
    const tcp::endpoint client = socket.remote_endpoint(error);
    if (error) return;
    const std::string address = client.address().to_string();
    const auto from_there = shared_.by_address.find(address);
    if (from_there != shared_.by_address.end() && from_there->second >= shared_.limits.connections_per_address)
      return turn_away(std::move(socket), "too many connections from one address; close some, or try again later");
    if (connections() >= shared_.limits.connections) {
      if (shared_.waiting.empty())
        return turn_away(std::move(socket), "the server has as many connections as it can hold; try again later");
      shared_.waiting.front()->close();
    }
    socket.set_option(tcp::no_delay(true), error);
    serve_connection(shared_, std::move(socket), address);
  }

  // Answers a connection beyond the limit with 503, and closes it once the client has had time to take the answer.
  void turn_away(tcp::socket socket, std::string_view why) {
    constexpr int kMost = 64;
    if (turned_away_ == kMost) return;  // closes it
    struct Stranger {
      Stranger(HttpServerImpl& its, tcp::socket from)
          : server(its), socket(std::move(from)), timer(server.shared_.context) {
        ++server.turned_away_;
      }
      Stranger(const Stranger&) = delete;
      Stranger& operator=(const Stranger&) = delete;
      ~Stranger() { --server.turned_away_; }
      HttpServerImpl& server;
      tcp::socket socket;
      asio::steady_timer timer;
      std::string answer;
    };
    const auto stranger = std::make_shared<Stranger>(*this, std::move(socket));
    const std::string body = error_body(why, error_type(503), "too_many_connections");
    stranger->answer =
        answer_head(503, "application/json", BodyEnd::kLength, body.size(), {{"Retry-After", "1"}}, false);
    stranger->answer += body;
    stranger->timer.expires_after(std::chrono::seconds(2));
    stranger->timer.async_wait([stranger](Error error) {
      Error ignored;
      if (!error) stranger->socket.close(ignored);
    });
    asio::async_write(stranger->socket, asio::buffer(stranger->answer), [stranger](Error error, std::size_t) {
      Error ignored;
      if (!error) stranger->socket.shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  HttpShared shared_;
  int turned_away_ = 0;  // connections being answered with 503
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::optional<asio::steady_timer> deadline_;
};

}  // namespace

std::string_view HttpRequest::field(std::string_view name) const {
  for (const auto& [key, value] : fields)
    if (key == name) return value;
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::open(const std::string& address, std::uint16_t port,
                                                     const HttpLimits& limits, Handler handler, Admit admit) {
  auto server = std::make_unique<HttpServerImpl>(limits, std::move(handler), std::move(admit));
  KVASIR_RETURN_IF_ERROR(server->listen(address, port));
  return {std::unique_ptr<HttpServer>(std::move(server))};
}

}  // namespace kvasir::server

// An HTTP/1.1 server on one thread: it reads requests within limits, hands them to a handler, and writes what the
// handler answers, whole or as a stream. It knows nothing of models or JSON.
//
// Everything a client can send or hold open has a limit (HttpLimits). A client that goes away, stops reading, or reads
// too slowly while an answer is written is reported to the answer's `on_closed`.
//
// Thread-safety: HttpServer::run() is the I/O thread. The handler, answers and their callbacks run there and nowhere
// else; post(), stop() and drain() may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::server {

struct HttpLimits {
  std::size_t header_bytes = 16 << 10;  // request line and header fields; more is answered with 431
  int header_fields = 64;
  std::size_t body_bytes = 8 << 20;  // more is answered with 413
  // Of all bodies that are read or answered, and of whole answers that are written. Each account has a part of it
  // (HttpServer::Admit); what goes beyond is answered with 503.
  std::size_t bodies_bytes = 256 << 20;
  // In all, and no more than descriptors suffice for. One more takes the place of that which has been without a request
  // for longest; where all have one it is answered with 503 and closed.
  int connections = 1024;
  int connections_per_address = 512;  // from one client address
  // Of a stream that its reader has not taken; a write beyond ends the connection. One write may be larger.
  std::size_t queued_bytes = 1 << 20;
  std::chrono::seconds header_time{10};  // from a request's first byte to the end of its header
  // A body must come at this rate, in bytes a second, or more, over any time of body_grace.
  std::size_t body_rate = 1024;
  std::chrono::seconds body_grace{10};
  // An answer must be read at body_rate, or more, over any time of write_stall in which some of it waits.
  std::chrono::seconds write_stall{30};
  std::chrono::seconds keep_alive{60};  // between two requests
  std::chrono::seconds heartbeat{15};   // between comments in a stream that says nothing else
};

struct HttpRequest {
  std::string method;
  std::string path;                                         // without the query
  std::string query;                                        // behind '?'
  std::vector<std::pair<std::string, std::string>> fields;  // of the header, names in lower case
  std::string body;
  std::string address;  // of the client
  // The client's X-Request-Id, if it is one of 1 to 128 printable ASCII characters, or a fresh one. The answer has it.
  std::string id;

  // Returns the value of the first field of this name (lower case), or "".
  std::string_view field(std::string_view name) const;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// Messages of the errors that refuse a request during a drain (kGoingDown) and that end one when the drain is over
// (kCutOff), and the code of both.
inline constexpr std::string_view kGoingDown =
    "the server is going down; send the request to another server, or again when this one is back";
inline constexpr std::string_view kCutOff =
    "the server is shutting down and cannot complete this answer; send the request to another server, or again when "
    "this one is back";
inline constexpr std::string_view kShutdown = "shutdown";

// The answer to one request: either send(), or begin_stream(), write() any number of times, and end(). Calls after the
// connection closed have no effect. Dropping an answer that was not finished closes the connection.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;
  // Adds fields to the header of the answer, whoever sends it in whichever form, in place of those of the same name.
  // Call it before send and begin_stream.
  virtual void add_fields(const HttpFields& fields) = 0;
  virtual void send(int status, std::string_view content_type, std::string body, const HttpFields& fields = {}) = 0;
  // Begins a stream of server-sent events, with status 200.
  virtual void begin_stream(const HttpFields& fields = {}) = 0;
  // Adds bytes to the stream.
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;
  // Sets what is called once if the connection closes before the answer is finished: the client left, or does not read.
  // None of the calls above calls it.
  virtual void on_closed(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)>;
  // Sees a request whose body has not been read yet, and returns the account that its bytes count in, such as the
  // sender's name; or nothing, having sent an answer that refuses it. The connection closes then.
  using Admit = std::function<std::optional<std::string>(const HttpRequest&, HttpAnswer&)>;

  // Listens on an address and a port (0: any that is free). `admit` may be empty: bodies count by client address.
  // Errors: kInvalidArgument (an address that is none), kIo (in use, not permitted).
  static Result<std::unique_ptr<HttpServer>> open(const std::string& address, std::uint16_t port,
                                                  const HttpLimits& limits, Handler handler, Admit admit = {});
  // Closes all connections, whose answers hear of it (HttpAnswer::on_closed). What was posted and has not run is
  // dropped. REQUIRES: no other thread posts any more.
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const = 0;
  // Serves until stop(), or until drain() has come to its end.
  virtual void run() = 0;
  // Runs a function on the I/O thread.
  virtual void post(std::function<void()> function) = 0;
  // Runs a function on the I/O thread, again and again.
  virtual void every(std::chrono::milliseconds period, std::function<void()> function) = 0;
  // Accepts no more connections, closes idle ones, and lets answers under way finish. At the deadline `cut_off` is
  // called, which may end answers, and requests that then have none are answered with 503 (kCutOff). What its client
  // has not taken 2 s later is lost.
  virtual void drain(std::chrono::milliseconds deadline, std::function<void()> cut_off) = 0;
  virtual void stop() = 0;

  // Connections open now; I/O thread only.
  virtual int connections() const = 0;
};

}  // namespace kvasir::server

// An HTTP/1.1 server on one thread: it reads requests within limits, passes them to a handler, and writes the answers,
// whole or as a stream. It knows nothing of models or JSON.
//
// Everything a client can send or hold open has a limit (HttpLimits). A client that goes away, stops reading, or reads
// too slowly while an answer is written is reported to the answer's `on_closed`.
//
// Thread-safety: HttpServer::run() is the I/O thread. The handler, answers and their callbacks run only there; post(),
// stop() and drain() may be called from any thread.
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
  // Most bytes of all request bodies being read or answered, and of whole answers being written. An account may hold a
  // part of them (HttpServer::Admit); a request beyond it is answered with 503.
  std::size_t bodies_bytes = 256 << 20;
  // Most connections, also limited by the process's descriptors. A further connection replaces the one that has been
  // without a request for longest. If all have a request, the new one is answered with 503 and closed.
  int connections = 1024;
  int connections_per_address = 512;  // from one client address
  // Most bytes of a stream that its reader has not taken; a write beyond closes the connection. One write may be
  // larger.
  std::size_t queued_bytes = 1 << 20;
  std::chrono::seconds header_time{10};  // from a request's first byte to the end of its header
  // Least rate of a body, in bytes a second, over any time of body_grace.
  std::size_t body_rate = 1024;
  std::chrono::seconds body_grace{10};
  // An answer must be read at body_rate over any time of write_stall in which bytes of it wait.
  std::chrono::seconds write_stall{30};
  std::chrono::seconds keep_alive{60};  // between two requests
  std::chrono::seconds heartbeat{15};   // between comments in an otherwise silent stream
};

struct HttpRequest {
  std::string method;
  std::string path;                                         // without the query
  std::string query;                                        // behind '?'
  std::vector<std::pair<std::string, std::string>> fields;  // of the header, names in lower case
  std::string body;
  std::string address;  // of the client
  // The client's X-Request-Id, if it has 1 to 128 printable ASCII characters, otherwise a new random one. The answer
  // repeats it.
  std::string id;

  // Returns the value of the first field of this name (lower case), or "".
  std::string_view field(std::string_view name) const;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// Messages of the errors that refuse a request during a drain (kGoingDown) and end one at its deadline (kCutOff), and
// the code of both (kShutdown).
inline constexpr std::string_view kGoingDown =
    "the server is going down; send the request to another server, or again when this one is back";
inline constexpr std::string_view kCutOff =
    "the server is shutting down and cannot complete this answer; send the request to another server, or again when "
    "this one is back";
inline constexpr std::string_view kShutdown = "shutdown";

inline constexpr std::string_view kServerSentEvents = "text/event-stream";

// The answer to one request: either send(), or begin_stream(), write() any number of times, and end(). Calls after the
// connection closed have no effect. Dropping an answer that was not finished closes the connection.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;
  // Adds fields to the header that send or begin_stream writes later, replacing those of the same name.
  virtual void add_fields(const HttpFields& fields) = 0;
  virtual void send(int status, std::string_view content_type, std::string body, const HttpFields& fields = {}) = 0;
  // Begins a stream, with status 200: of server-sent events, or of lines of JSON.
  virtual void begin_stream(const HttpFields& fields = {}, std::string_view content_type = kServerSentEvents) = 0;
  // Adds bytes to the stream.
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;
  // Sets a callback, called once if the connection closes before the answer is finished: the client left, or does not
  // read. None of the calls above calls it.
  virtual void on_closed(std::function<void()> callback) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)>;
  // Called before a request's body is read. Returns the account of its bytes, such as the sender's name; or sends a
  // refusal and returns nullopt, which closes the connection.
  using Admit = std::function<std::optional<std::string>(const HttpRequest&, HttpAnswer&)>;

  // Listens on an address and a port (0: any that is free). `admit` may be empty: bodies then count by client address.
  // Errors: kInvalidArgument (an invalid address), kIo (in use, not permitted).
  static Result<std::unique_ptr<HttpServer>> open(const std::string& address, std::uint16_t port,
                                                  const HttpLimits& limits, Handler handler, Admit admit = {});
  // Closes all connections and notifies their answers (HttpAnswer::on_closed). Posted functions that have not run are
  // dropped. REQUIRES: no other thread posts any more.
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const = 0;
  // Serves until stop(), or until a drain() is complete.
  virtual void run() = 0;
  // Runs a function on the I/O thread.
  virtual void post(std::function<void()> function) = 0;
  // Runs a function on the I/O thread once every period.
  virtual void every(std::chrono::milliseconds period, std::function<void()> function) = 0;
  // Accepts no more connections, closes idle ones, and lets answers under way finish. At the deadline `cut_off` is
  // called, which may end answers; requests still without an answer are answered with 503 (kCutOff). Bytes that a
  // client has not taken 2 s later are lost.
  virtual void drain(std::chrono::milliseconds deadline, std::function<void()> cut_off) = 0;
  virtual void stop() = 0;

  // The number of open connections; I/O thread only.
  virtual int connections() const = 0;
};

}  // namespace kvasir::server

// One connection of the HTTP server, and what all connections share. For http_server.cc alone.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <unordered_set>

#include "server/http/http_bodies.h"
#include "server/http/http_server.h"

namespace kvasir::server {

// Lives as long as one of its operations is pending.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // Waits for the first byte of a request.
  virtual bool idle() const = 0;
  // Closes the socket; the answer under way hears of it (HttpAnswer::on_closed).
  virtual void close() = 0;
  // Answers with 503 a request that has no answer yet, and lets one that is complete be taken. REQUIRES:
  // HttpShared::cut_off.
  virtual void cut_off() = 0;
};

struct HttpShared {
  HttpLimits limits;
  HttpServer::Handler handler;
  std::unordered_set<HttpConnection*> open;
  std::map<std::string, int> by_address;
  // Those of which no whole header has come, or whose answer is written and which only wait for the client's end; the
  // longest first. They give way to new connections.
  std::list<HttpConnection*> waiting;
  HttpServer::Admit admit;  // may be empty
  HttpBodies bodies;        // of all requests that are read or answered now
  bool draining = false;
  bool cut_off = false;                // the time to drain is over
  std::function<void()> closed;        // called when a connection has closed; may be empty
  boost::asio::io_context context{1};  // last: its handlers own connections, which use the others
};

// Serves a connection until it closes. `shared` must outlive its io_context's handlers.
void serve_connection(HttpShared& shared, boost::asio::ip::tcp::socket socket, std::string address);

}  // namespace kvasir::server

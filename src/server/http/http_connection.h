// One connection of the HTTP server, and the state that all connections share. Only for http_server.cc.
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
  // Whether the connection waits for the first byte of a request.
  virtual bool idle() const = 0;
  // Closes the socket and notifies the answer under way (HttpAnswer::on_closed).
  virtual void close() = 0;
  // Answers a request without an answer with 503, and lets the client take an answer that is complete. REQUIRES:
  // HttpShared::cut_off.
  virtual void cut_off() = 0;
};

struct HttpShared {
  HttpLimits limits;
  HttpServer::Handler handler;
  std::unordered_set<HttpConnection*> open;
  std::map<std::string, int> by_address;
  // Connections without a whole header, or with a written answer that wait for the client's end; longest wait first.
  // They give way to new connections.
  std::list<HttpConnection*> waiting;
  HttpServer::Admit admit;  // may be empty
  HttpBodies bodies;        // of all requests being read or answered
  bool draining = false;
  bool cut_off = false;                // the time to drain is over
  std::function<void()> closed;        // called when a connection has closed; may be empty
  boost::asio::io_context context{1};  // last: its handlers own connections, which use the others
};

// Serves a connection until it closes. `shared` must outlive its io_context's handlers.
void serve_connection(HttpShared& shared, boost::asio::ip::tcp::socket socket, std::string address);

}  // namespace kvasir::server

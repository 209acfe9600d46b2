// Completions under way, of all dialects, and the routes of sessions, which a completion may continue:
//
//   POST /v1/sessions/{id}     reads a prompt or messages into the session, which is made if there is none, and saves
//                              it; without either restores it, and says what it holds
//   GET /v1/sessions/{id}      says how large its file is, and how old
//   DELETE /v1/sessions/{id}
//   GET /v1/sessions           lists them; each tenant sees its own
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/flight.h"
#include "server/http/router.h"

namespace kvasir::server {

class Completions {
 public:
  // The objects that `deck` refers to must outlive this, and `session_text`, which reads the bodies of
  // POST /v1/sessions/{id}.
  Completions(const FlightDeck& deck, const Dialect& session_text);

  // Adds the routes of sessions. This must outlive the router.
  void add_routes(Router& router);

  // Begins a completion. `dialect` must outlive it. `session`: see Flight.
  void fly(Exchange exchange, const Dialect& dialect, std::string session = {});

  // Refuses requests from now on: the server is going down.
  void begin_drain() { draining_ = true; }

  // Ends all requests with an error: the time to drain is over.
  void cut_off();

  // Refuses requests that have waited longer than FlightDeck::queue_timeout. Called several times a second.
  void tick();

 private:
  void use_session(Exchange exchange);
  void find_session(Exchange exchange);
  void list_sessions(Exchange exchange);
  void delete_session(Exchange exchange);
  // Refuses the request and returns false if the server has no sessions or the id is invalid.
  bool has_sessions(const Exchange& exchange) const;

  FlightDeck deck_;
  const Dialect& session_text_;
  bool draining_ = false;
  std::vector<std::weak_ptr<Flight>> flights_;  // under way, and some that have ended
};

}  // namespace kvasir::server

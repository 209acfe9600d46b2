// One completion under way: from its body to the end of its answer.
//
// First the flight waits for the model that the body names (server/models/model_desk.h), and keeps it until the answer
// ends. A model is loaded only for a body that is a JSON object. The body is prepared on the text thread
// (server/api/prepare.h), as its dialect reads it; if it asks for a grammar, that is compiled on a thread for grammars.
// Each prompt then becomes a request of the engine; the samples are the answer's choices. A completion of a session
// first opens the session, and writes it back before the answer ends. Thread-safety: the I/O thread's alone, except
// prepare().
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/admin/traffic.h"
#include "server/api/dialect.h"
#include "server/api/flight_record.h"
#include "server/api/prepare.h"
#include "server/api/samples.h"
#include "server/api/session_hold.h"
#include "server/http/exchange.h"
#include "server/models/model_desk.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// What all flights share. Outlives them.
struct FlightDeck {
  ModelDesk& models;
  TextThread& texts;
  TextThread& grammars;  // for requests whose grammar has to be compiled
  Traffic& traffic;
  SessionDesk* sessions;  // of the default model, which is loaded then; null: the server has no sessions
  // How long a request may wait for its first pass before it is refused with 503; 0: for ever. ModelDesk has the same
  // limit for the wait for the model. With a limit a stream begins with the first pass, so that it can still be
  // refused.
  std::chrono::seconds queue_timeout{0};
};

class Flight : public std::enable_shared_from_this<Flight> {
 public:
  // A flight lives as long as a callback refers to it. `deck` and `dialect` must outlive it. `head`: needs id and time;
  // the rest is filled in. `session`: of POST /v1/sessions/{id}; see Preparation.
  Flight(const FlightDeck& deck, const Dialect& dialect, AnswerHead head, Exchange exchange, std::string session = {});

  void start();

  // Refuses the request if it arrived before `latest` and has not had a pass.
  void wait_until(std::chrono::steady_clock::time_point latest);

  // Submits prompts that the queue had no room for, if it has now. Call it from time to time.
  void go_on();

  // Ends the answer with an error: the server is shutting down.
  void cut_off();

 private:
  void ask(const std::string& name);
  void got_model(Result<ModelLease> lease);
  void prepare_on(TextThread& thread);
  void prepare();   // on that thread: reads body_ and writes ready_
  void prepared();  // on the I/O thread, which owns ready_ from here on
  void opened(const Status& status);
  void submit();
  void submit_parts();
  std::size_t samples_under_way() const;
  Status submit_part(std::size_t part, RequestOptions options);
  void accepted(const Status& status);
  void begin_stream();
  void happened(std::size_t part, const Event& event);
  void write_pieces(const Choice& choice, std::span<const AnswerPiece> pieces, std::span<const GeneratedToken> tokens);
  void ended();
  void saved(const Status& status);
  void answer();
  void fail(const Status& status);
  void fail(int http, const Status& status, std::string_view code);
  void tell_failure(const ErrorText& error);
  void refuse(int http, const Status& status, std::string_view reason, std::string_view code = {});
  void refuse(const ErrorText& error, std::string_view reason);
  void end_without_memory();
  void leave();
  void release_all();
  std::string policy_so_far() const;
  void report_finished(std::string_view finish_reason, int http);
  nlohmann::json extras() const;

  const ApiRequest& request() const { return ready_.request; }

  const FlightDeck& deck_;
  const Dialect& dialect_;
  AnswerHead head_;
  Exchange exchange_;
  std::string session_route_;
  ModelDesk::WaitId waits_ = 0;  // for the model
  ModelLease model_;             // from then on, until the flight is over
  bool preparing_ = false;       // another thread uses the model
  std::string body_;
  bool awaits_grammar_ = false;  // ready_ is read; the rest is for a thread for grammars
  bool no_memory_ = false;       // no memory for a copy of the body
  Status preparation_;
  ReadyRequest ready_;
  Samples samples_{ready_};
  AnswerPiece plain_;          // text that no parser reads; kept for its memory
  std::size_t next_part_ = 0;  // the first that is not submitted
  SessionHold session_;
  FlightRecord record_;
  bool streams_ = false;        // the stream has begun
  bool over_ = false;           // nothing more is sent or reported
  std::stop_source cancelled_;  // asked to stop once over_, for the other threads
};

}  // namespace kvasir::server

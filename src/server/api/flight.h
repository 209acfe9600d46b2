// One completion under way: from its body to the end of its answer.
//
// The body is prepared on the text thread (server/api/prepare.h). Each prompt then is a request of the engine; their
// samples are the answer's choices. A completion of a session first opens it, and writes it back before the answer
// ends. Thread-safety: the I/O thread's alone, but for what prepare() says.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/admin/traffic.h"
#include "server/api/api_response.h"
#include "server/api/prepare.h"
#include "server/http/exchange.h"
#include "server/sessions/session_desk.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

// What flights share; outlives them.
struct FlightDeck {
  StepThread& steps;
  TextThread& texts;
  Traffic& traffic;
  SessionDesk* sessions;     // null: there are none
  std::string model;         // as clients name it
  std::string policy;        // of requests that name none; empty: the engine's default
  SamplingOptions sampling;  // of requests that give no temperature
  // How long a request may wait for its first pass before it is refused with 503; 0: for ever. With a limit a stream
  // begins with the first pass, so that it can still be refused.
  std::chrono::seconds queue_timeout{0};
};

class Flight : public std::enable_shared_from_this<Flight> {
 public:
  // Flights live as long as somebody may call them. `head`: its id and its time; the rest is filled in.
  // `session`: of POST /v1/sessions/{id}; see Preparation.
  Flight(const FlightDeck& deck, AnswerHead head, Exchange exchange, std::string session = {});

  void start();

  // Refuses the request if it came before `latest` and has not had a pass.
  void wait_until(std::chrono::steady_clock::time_point latest);

  // Ends what is left of the answer with an error: the server is shutting down.
  void cut_off();

 private:
  using Clock = std::chrono::steady_clock;

  // A sample of a prompt.
  struct Sample {
    GenerateResult result;
    std::size_t offset = 0;  // characters of its text that were told
    Clock::time_point newest_text;
    std::int64_t texts = 0;  // that were told; each is of one token at least
  };
  struct Part {
    Ticket ticket{};
    std::vector<Sample> samples;
    std::int64_t prompt_read = 0;  // tokens
  };

  void prepare();   // on the text thread: reads body_ and writes ready_
  void prepared();  // from here on ready_ is the I/O thread's
  void opened(Result<OpenedSession> opened);
  void submit();
  Status submit_part(std::size_t part, RequestOptions options);
  void accepted(const Status& status);
  void begin_stream();
  void happened(std::size_t part, const Event& event);
  void note_text(Sample& sample);
  void note_progress();
  void count_tokens();
  void ended();
  void saved(const Result<std::uint64_t>& bytes);
  void answer();
  void report_fault(int http, const Status& status);
  void fail(const Status& status);
  void fail(int http, const Status& status, std::string_view code);
  void tell_failure(int http, std::string_view message, std::string_view code);
  void refuse(int http, const Status& status, std::string_view reason, std::string_view code = {});
  void end_without_memory();
  void leave();
  void release_all();
  std::string policy_so_far() const;
  void note_times_so_far();
  void report_finished(std::string_view finish_reason, int http);
  void add_extras(nlohmann::json& answer) const;
  nlohmann::json session_answer(const KvReport& kv) const;

  const ApiRequest& request() const { return ready_.request; }
  const Sample& first() const { return parts_.front().samples.front(); }
  Choice choice_of(std::size_t part, std::size_t sample) const;
  std::vector<Choice> best_choices() const;
  Usage usage() const;

  const FlightDeck& deck_;
  AnswerHead head_;
  Exchange exchange_;
  std::string session_route_;
  std::string body_;
  bool no_memory_ = false;  // for the body
  Status preparation_;
  ReadyRequest ready_;
  std::vector<Part> parts_;
  std::size_t left_ = 0;                 // samples that have not ended
  bool began_ = false;                   // it has had a pass
  Clock::time_point first_event_;        // if so: when that was told
  bool streams_ = false;                 // the stream has begun
  bool over_ = false;                    // nothing more is told to anybody
  std::atomic<bool> cancelled_ = false;  // over_, for the text thread

  // Of a session.
  SessionName name_;
  bool took_ = false;
  bool at_desk_ = false;  // it is being opened or written: its name is not given back
  OpenedSession session_;
  std::uint64_t session_bytes_ = 0;

  RequestRecord record_;
  Clock::time_point arrived_ = Clock::now();
  Clock::time_point progress_told_ = arrived_;
};

}  // namespace kvasir::server

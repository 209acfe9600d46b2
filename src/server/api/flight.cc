#include "server/api/flight.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/status.h"
#include "server/api/text_answer.h"
#include "server/fields/ignored_fields.h"
#include "server/models/asked_model.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// `code`: replaces the status' own code; empty: keeps it.
ErrorText error_with(int http, const Status& status, std::string_view code) {
  return code.empty() ? error_text(status) : ErrorText{http, status.message(), std::string(code), {}};
}

}  // namespace

Flight::Flight(const FlightDeck& deck, const Dialect& dialect, AnswerHead head, Exchange exchange, std::string session)
    : deck_(deck),
      dialect_(dialect),
      head_(std::move(head)),
      exchange_(std::move(exchange)),
      session_route_(std::move(session)),
      body_(std::move(exchange_.request.body)),
      session_(deck.sessions),
      record_(deck.traffic, head_.id, exchange_) {}

void Flight::start() {
  exchange_.answer->on_closed([self = shared_from_this()] { self->leave(); });
  const Result<std::string> named = asked_model(body_);
  if (!named.ok()) return refuse(error_text(named.status()), "invalid");
  const std::string name = dialect_.model_of(*named);
  check_before_loading(deck_.models, deck_.texts, name, body_, exchange_.caller,
                       [self = shared_from_this(), name](const std::optional<ErrorText>& error) {
                         if (self->over_) return;
                         if (error) return self->refuse(*error, error->code.empty() ? "invalid" : error->code);
                         self->ask(name);
                       });
}

void Flight::ask(const std::string& name) {
  waits_ =
      deck_.models.ask(name, exchange_.caller.tenant_number,
                       [self = shared_from_this()](Result<ModelLease> lease) { self->got_model(std::move(lease)); });
}

void Flight::got_model(Result<ModelLease> lease) {
  waits_ = 0;
  if (over_) return;
  if (!lease.ok()) {
    const ErrorText error = error_of_model(lease.status());
    return refuse(error, error.http == 404 ? "unknown_model" : error.code);
  }
  model_ = std::move(*lease);
  head_.model = model_->defaults.name;
  record_.set_model(head_.model);
  prepare_on(deck_.texts);
}

void Flight::prepare_on(TextThread& thread) {
  preparing_ = true;
  const Status queued = thread.run(
      body_.size(), [self = shared_from_this()] { self->prepare(); }, [self = shared_from_this()] { self->prepared(); },
      exchange_.caller.tenant);
  if (queued.ok()) return;
  preparing_ = false;
  refuse(429, queued, "queue_full", "queue_full");
}

void Flight::wait_until(std::chrono::steady_clock::time_point latest) {
  // While the flight waits for its model, the desk refuses it.
  if (over_ || waits_ != 0 || record_.began() || record_.arrived() > latest) return;
  refuse(503, exhausted("the server is busy: the request has waited too long; try again later"), "queue_timeout",
         "queue_timeout");
}

void Flight::go_on() {
  if (!over_ && !samples_.parts().empty() && next_part_ > 0) submit_parts();
}

void Flight::prepare() {
  if (cancelled_.stop_requested()) return;
  const Preparation common{&dialect_, &exchange_, session_route_};
  try {
    if (!std::exchange(awaits_grammar_, false)) {
      Result<ReadyRequest> ready = server::begin_request(body_, common, *model_);
      preparation_ = ready.status();
      if (ready.ok()) ready_ = std::move(*ready);
      if (!preparation_.ok() || !ready_.at_once.empty()) return body_.clear();
      awaits_grammar_ = needs_grammar(ready_);
      if (awaits_grammar_) return;
    }
    preparation_ = finish_request(ready_, common, *model_, cancelled_.get_token());
  } catch (const std::bad_alloc&) {
    no_memory_ = true;
  }
  body_ = {};
}

void Flight::prepared() {
  preparing_ = false;
  if (over_) return release_all();
  if (awaits_grammar_) return prepare_on(deck_.grammars);
  if (no_memory_)
    return refuse(503, exhausted("the server has no memory left for the body; try again later"), "no_memory",
                  "no_memory");
  if (!preparation_.ok())
    return refuse(http_status(preparation_), preparation_,
                  preparation_.code() == StatusCode::kResourceExhausted ? "too_large" : "invalid");
  if (!ready_.at_once.empty()) {
    exchange_.send_json(200, std::move(ready_.at_once));
    return release_all();
  }
  if (!request().ignored.empty())
    exchange_.answer->add_fields({{std::string(kIgnoredHeader), ignored_header(request().ignored)}});
  RequestOptions& options = ready_.request.options;
  // A NUL, which no salt of the server contains, separates the two.
  if (!options.salt.empty()) options.salt.insert(options.salt.begin(), '\0');
  options.salt.insert(0, exchange_.caller.salt);
  options.tenant = exchange_.caller.tenant_number;
  // A tenant may lower the priority of its requests, not raise it above others'.
  if (exchange_.caller.tenant_number != 0) options.priority = std::max(options.priority, 0);
  options.priority += exchange_.caller.priority;
  record_.set_samples(options.samples * static_cast<int>(std::max<std::size_t>(1, ready_.prompts.size())));
  if (request().session.empty()) return submit();

  if (deck_.sessions == nullptr)
    return refuse(400,
                  invalid_argument("this server keeps no sessions; start it with --sessions DIR").about({"session"}),
                  "invalid");
  if (&deck_.sessions->steps() != &model_->steps)
    return refuse(400,
                  invalid_argument("this server keeps sessions of the model '{}' alone; omit 'model' or 'session'",
                                   deck_.models.default_name())
                      .about({"session"}),
                  "invalid");
  const std::string& name = request().session;
  record_.set_session(name);
  if (!session_.take({exchange_.caller.tenant, name}))
    return refuse(409,
                  invalid_argument("another request is using the session '{}'; try again when that has ended", name)
                      .about({"session"}),
                  "session_busy", "session_busy");
  session_.open(options, model_->defaults.policy, !ready_.restores_only,
                [self = shared_from_this()](const Status& status) { self->opened(status); });
}

void Flight::opened(const Status& status) {
  if (over_) return release_all();
  if (!status.ok()) {
    const SessionFault fault = fault_of_session(status);
    record_.report_fault(fault.http, status);
    return refuse(fault.http, in_body(status), fault.http == 503 ? "no_room" : "invalid", fault.code);
  }
  if (ready_.restores_only) {
    exchange_.send_json(200, text_of({{"object", "session"}, {"session", session_.json(session_.opened().kv)}}));
    return release_all();
  }
  ready_.request.options.session = session_.opened().session;
  ready_.request.options.releases_session = true;
  submit();
}

void Flight::submit() {
  head_.sampling = request().options.generate.sampling;
  head_.names_tier = request().names_tier;
  head_.token_ids = request().return_token_ids;
  head_.prompt_logprobs = request().prompt_logprobs;
  std::int64_t prompt_tokens = 0;
  for (const ReadyPrompt& each : ready_.prompts) prompt_tokens += std::ssize(each.prompt.tokens);
  ready_.writer->start(head_, prompt_tokens);
  samples_.begin(std::hash<std::string>()(head_.id));
  submit_parts();
}

// Submits prompts until kMostTexts samples are under way, or the queue is full; the others follow as these end.
void Flight::submit_parts() {
  const RequestOptions& options = ready_.request.options;
  const std::size_t parts = samples_.parts().size();
  for (; next_part_ < parts && samples_under_way() < kMostTexts; ++next_part_) {
    RequestOptions one = options;
    one.label = parts == 1 ? head_.id : fmt::format("{}.{}", head_.id, next_part_);
    if (!ready_.prompts.empty()) {
      one.tokens = ready_.prompts[next_part_].prompt.tokens;
      one.template_stops = ready_.prompts[next_part_].prompt.stops;
      one.lasting_tokens = ready_.prompts[next_part_].prompt.lasting_tokens;
    } else if (!request().prompts.empty()) {
      one.prompt = request().prompts.front().text;
      one.tokens = request().prompts.front().tokens;
    }
    if (const Status status = submit_part(next_part_, std::move(one)); !status.ok()) {
      if (next_part_ > 0) return;  // goes on when one ends, or with go_on()
      return refuse(429, status, "queue_full", "queue_full");
    }
    if (ready_.prompts.empty()) continue;
    ready_.prompts[next_part_].prompt.tokens = {};  // in the engine now
  }
  if (next_part_ < parts) return;
  ready_.request.options.session.reset();
  ready_.request.options.messages.clear();
}

std::size_t Flight::samples_under_way() const {
  const std::size_t samples = samples_.parts().front().samples.size();
  return next_part_ * samples - (samples_.parts().size() * samples - samples_.left());
}

Status Flight::submit_part(std::size_t part, RequestOptions options) {
  StepThread::Listener listener;
  listener.accepted = [self = shared_from_this()](const Status& status) { self->accepted(status); };
  listener.happened = [self = shared_from_this(), part](const Event& event) {
    try {
      self->happened(part, event);
    } catch (const std::bad_alloc&) {  // must not reach the caller, which has events of other requests left
      self->end_without_memory();
    }
  };
  KVASIR_ASSIGN_OR_RETURN(samples_.part(part).ticket, model_->steps.submit(std::move(options), std::move(listener)));
  return {};
}

void Flight::accepted(const Status& status) {
  if (over_) return;
  if (!status.ok()) {
    if (status.code() == StatusCode::kIo) return fail(503, status, "no_memory");
    const Status said = in_body(status);
    record_.report_fault(http_status(said), said);
    return refuse(http_status(said), said, said.code() == StatusCode::kResourceExhausted ? "too_large" : "invalid");
  }
  if (deck_.queue_timeout.count() == 0) begin_stream();
}

void Flight::begin_stream() {
  if (!request().stream || std::exchange(streams_, true)) return;
  exchange_.answer->begin_stream({}, ready_.writer->stream_type());
  exchange_.answer->write(ready_.writer->begin(samples_.all_choices()));
}

void Flight::happened(std::size_t part, const Event& event) {
  if (over_) return;
  record_.note_event();
  begin_stream();
  const auto number = static_cast<std::size_t>(event.sample);
  Samples::Sample& sample = samples_.part(part).samples[number];
  switch (event.kind) {
    case Event::Kind::kPrompt:
      samples_.part(part).prompt_read = event.done;
      record_.note_progress(samples_);
      break;
    case Event::Kind::kText:
      sample.tokens = event.done;
      record_.note_text(sample);
      record_.note_progress(samples_);
      if (sample.parser != nullptr) {
        write_pieces(samples_.choice_of(part, number), Samples::read(sample, event.text, false), event.choices);
      } else if (request().stream) {
        plain_.text = event.text;
        write_pieces(samples_.choice_of(part, number), {&plain_, 1}, event.choices);
      }
      break;
    case Event::Kind::kFailed: fail(event.status); break;
    case Event::Kind::kFinished:
      samples_.end(sample, event.result);
      if (sample.parser != nullptr) write_pieces(samples_.choice_of(part, number), Samples::read(sample, "", true), {});
      if (request().stream) {
        exchange_.answer->write(ready_.writer->end_choice(samples_.choice_of(part, number), event.choices));
      } else {
        ready_.writer->ended(samples_.choice_of(part, number));
      }
      samples_.left() == 0 ? ended() : submit_parts();
      break;
  }
}

void Flight::write_pieces(const Choice& choice, std::span<const AnswerPiece> pieces,
                          std::span<const GeneratedToken> tokens) {
  if (!request().stream) return;
  const std::string bytes = ready_.writer->pieces(choice, pieces, tokens);
  if (!bytes.empty()) exchange_.answer->write(bytes);
}

void Flight::ended() {
  if (session_.opened().session == nullptr) return answer();
  session_.save([self = shared_from_this()] { return !self->cancelled_.stop_requested(); },
                [self = shared_from_this()](const Status& status) { self->saved(status); });
}

void Flight::saved(const Status& status) {
  if (over_) return release_all();
  if (status.ok()) return answer();
  const SessionFault fault = fault_of_session(status);
  fail(fault.http, status, fault.code);
}

void Flight::answer() {
  report_finished(finish_reason_name(samples_.first().result.finish_reason), 200);
  const Json added = extras();
  const AnswerTotals totals{samples_.usage(), record_.seconds(), added.empty() ? nullptr : &added};
  if (!request().stream) {
    exchange_.send_json(200, ready_.writer->whole(samples_.best_choices(), totals));
    return release_all();
  }
  exchange_.answer->write(ready_.writer->end(totals));
  exchange_.answer->end();
  release_all();
}

// Returns the members that Kvasir adds to the answer.
Json Flight::extras() const {
  Json added = Json::object();
  if (request().hints.given) added["kv_hints"] = hints_answer(request().hints);
  if (session_.saved_bytes() == 0) return added;
  added["session"] = session_.json(samples_.first().result.kv);
  added["session"]["saved"] = true;
  added["session"]["bytes"] = session_.saved_bytes();
  return added;
}

void Flight::cut_off() {
  if (over_) return;
  if (samples_.parts().empty()) {
    over_ = true;
    record_.report_refused("draining");
  } else {
    report_finished(kShutdown, streams_ ? 200 : 503);
  }
  tell_failure({503, std::string(kCutOff), std::string(kShutdown), {}});
}

// Ends the answer with an error: as a body, or in a stream that has begun.
void Flight::tell_failure(const ErrorText& error) {
  if (!streams_) {
    exchange_.refuse(error, retry_fields(error.http));
  } else {
    exchange_.answer->write(ready_.writer->failure(error));
    exchange_.answer->end();
  }
  release_all();
}

// Fails an answer that cannot be completed. `code`: of the error; empty: that of the status.
void Flight::fail(int http, const Status& status, std::string_view code) {
  record_.report_fault(http, status);
  report_finished("error", streams_ ? 200 : http);
  ErrorText error = error_with(http, code.empty() ? in_body(status) : status, code);
  error.http = http;
  tell_failure(error);
}

void Flight::fail(const Status& status) {
  // Except where the text has outgrown its policy, exhaustion is about the server's memory.
  const std::vector<std::string_view>& settings = status.settings();
  const bool memory =
      status.code() == StatusCode::kResourceExhausted && (settings.empty() || settings.front() != "policy");
  memory ? fail(503, in_body(status), "no_memory") : fail(http_status(status), status, "");
}

// Closes the connection if there is no memory even for the error.
void Flight::end_without_memory() {
  try {
    fail(503, exhausted("the server has no memory left for the answer; try again later"), "no_memory");
  } catch (const std::bad_alloc&) {
    over_ = true;
    cancelled_.request_stop();
    release_all();
    exchange_.answer.reset();
  }
}

// Refuses a request that was not taken.
void Flight::refuse(int http, const Status& status, std::string_view reason, std::string_view code) {
  ErrorText error = error_with(http, status, code);
  error.http = http;
  refuse(error, reason);
}

void Flight::refuse(const ErrorText& error, std::string_view reason) {
  record_.report_refused(reason);
  tell_failure(error);
}

// Called when the client has gone.
void Flight::leave() {
  if (std::exchange(over_, true)) return;
  cancelled_.request_stop();
  if (!samples_.parts().empty()) report_finished("abandoned", 499);
  release_all();
}

// Gives back everything that the flight holds. A session that is being opened or written is given back after that.
void Flight::release_all() {
  over_ = true;
  cancelled_.request_stop();
  deck_.models.forget(std::exchange(waits_, 0));
  if (model_ && samples_.left() > 0)
    for (const Samples::Part& part : samples_.parts())
      if (part.ticket != Ticket{}) model_->steps.cancel(part.ticket);
  if (!preparing_) ready_.request.options.session.reset();
  session_.release();
  exchange_.answer.reset();
  exchange_.caller.hold.reset();
  if (!preparing_) model_.reset();
}

// The policy of an answer that ends before its samples report one.
std::string Flight::policy_so_far() const {
  if (session_.opened().session != nullptr) return session_.opened().kv.policy;
  PlanRequest request;
  request.policy = ready_.request.options.policy;
  request.protect = ready_.request.options.protect;
  request.prompt = 1;
  request.max_tokens = 0;
  const Result<RequestPlan> plan = model_->steps.plan(request);  // for its canonical name
  return plan.ok() ? plan->policy : request.policy;
}

// Sets over_ first, so that a client that leaves meanwhile changes nothing.
void Flight::report_finished(std::string_view finish_reason, int http) {
  over_ = true;
  const std::string& policy = samples_.first().result.kv.policy;
  record_.report_finished(finish_reason, http, policy.empty() ? policy_so_far() : policy, samples_);
}

}  // namespace kvasir::server

#include "server/api/flight.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "retention/demotion.h"
#include "retention/registry.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Mean log-probability of the tokens, by which the best of several samples are chosen.
double mean_log_probability(const GenerateResult& result) {
  double sum = 0;
  for (const GeneratedToken& token : result.choices) sum += token.token.log_probability;
  return result.choices.empty() ? 0 : sum / static_cast<double>(result.choices.size());
}

// How an error is told.
struct Fault {
  int http = 0;
  std::string_view code;
};

// Of opening or writing a session: its own limits are not the server's lack of memory or disk, and neither is the
// length of its context.
Fault fault_of_session(const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted) return {http_status(status), ""};
  const std::vector<std::string_view>& settings = status.settings();
  if (!settings.empty() && settings.front() == "session") return {403, "session_limit"};
  return {503, "session_no_room"};
}

HttpFields retry_fields(int http) {
  HttpFields fields;
  if (http == 429 || http == 503) fields.emplace_back("Retry-After", "1");
  return fields;
}

// What a request makes where it names a session that there is not yet. Errors: session files could not hold it; the
// message says what to send instead.
Result<SessionOptions> fresh_session(const RequestOptions& options, const std::string& servers) {
  SessionOptions fresh{.policy = with_demotion(options.policy.empty() ? servers : options.policy, options.demote),
                       .protect = options.protect,
                       .codec = options.codec};
  const Result<PolicySpec> spec = PolicySpec::parse(fresh.policy);
  if (!spec.ok()) return fresh;  // the default, or none: the engine says why
  const Status saveable = check_saveable(*spec);
  if (saveable.ok()) return fresh;
  const bool demotes = spec->demotion.has_value();
  if (demotes && !options.demote.empty()) return Status(saveable).about({"demote"});
  if (!options.policy.empty()) return Status(saveable).about({"policy"});
  return unsupported(
      "sessions cannot be saved under '{}', the default of this server: session files do not hold {}; {}", servers,
      demotes ? "demoted tokens" : "offloaded keys and values",
      demotes ? R"("kv":{"demote":"off"} turns demotion off)" : R"(name another policy in "kv":{"policy":...})");
}

}  // namespace

Flight::Flight(const FlightDeck& deck, AnswerHead head, Exchange exchange, std::string session)
    : deck_(deck),
      head_(std::move(head)),
      exchange_(std::move(exchange)),
      session_route_(std::move(session)),
      body_(std::move(exchange_.request.body)) {
  head_.model = deck.model;
  record_.id = head_.id;
  record_.request_id = exchange_.request.id;
  record_.path = exchange_.request.path;
  record_.tenant = exchange_.caller.tenant;
}

void Flight::start() {
  exchange_.answer->on_closed([self = shared_from_this()] { self->leave(); });
  const Status queued = deck_.texts.run(
      body_.size(), [self = shared_from_this()] { self->prepare(); }, [self = shared_from_this()] { self->prepared(); },
      exchange_.caller.tenant);
  if (!queued.ok()) refuse(429, queued, "queue_full", "queue_full");
}

void Flight::wait_until(Clock::time_point latest) {
  if (over_ || began_ || arrived_ > latest) return;
  refuse(503, exhausted("the server is busy: the request has waited too long; try again later"), "queue_timeout",
         "queue_timeout");
}

void Flight::prepare() {
  if (cancelled_) return;
  try {
    Result<ReadyRequest> ready = server::prepare(
        body_, {deck_.policy, deck_.sampling, head_.chat, exchange_.caller.tenant_number, session_route_}, deck_.steps);
    preparation_ = ready.status();
    if (ready.ok()) ready_ = std::move(*ready);
  } catch (const std::bad_alloc&) {
    no_memory_ = true;
  }
  body_ = {};
}

void Flight::prepared() {
  if (over_) return;
  if (no_memory_)
    return refuse(503, exhausted("the server has no memory left for the body; try again later"), "no_memory",
                  "no_memory");
  if (!preparation_.ok())
    return refuse(http_status(preparation_), preparation_,
                  preparation_.code() == StatusCode::kResourceExhausted ? "too_large" : "invalid");
  if (!request().model.empty() && request().model != deck_.model)
    return refuse(404, unknown_model(request().model, deck_.model), "unknown_model", "model_not_found");
  RequestOptions& options = ready_.request.options;
  // A NUL, which no salt of the server's has, keeps the two apart.
  if (!options.salt.empty()) options.salt.insert(options.salt.begin(), '\0');
  options.salt.insert(0, exchange_.caller.salt);
  options.tenant = exchange_.caller.tenant_number;
  // A tenant may put its own requests behind others', not in front of them.
  if (exchange_.caller.tenant_number != 0) options.priority = std::max(options.priority, 0);
  options.priority += exchange_.caller.priority;
  record_.samples = options.samples * static_cast<int>(std::max<std::size_t>(1, ready_.prompts.size()));
  if (request().session.empty()) return submit();

  if (deck_.sessions == nullptr)
    return refuse(400,
                  invalid_argument("this server keeps no sessions; start it with --sessions DIR").about({"session"}),
                  "invalid");
  name_ = {exchange_.caller.tenant, request().session};
  record_.session = name_.id;
  if (!(took_ = deck_.sessions->take(name_)))
    return refuse(409,
                  invalid_argument("another request is using the session '{}'; try again when that has ended", name_.id)
                      .about({"session"}),
                  "session_busy", "session_busy");
  at_desk_ = true;
  deck_.sessions->open(name_, fresh_session(options, deck_.policy), !ready_.restores_only,
                       [self = shared_from_this()](Result<OpenedSession> opened) { self->opened(std::move(opened)); });
}

void Flight::opened(Result<OpenedSession> opened) {
  at_desk_ = false;
  if (opened.ok()) session_ = std::move(*opened);
  if (over_) return release_all();
  if (!opened.ok()) {
    const Fault fault = fault_of_session(opened.status());
    report_fault(fault.http, opened.status());
    return refuse(fault.http, in_body(opened.status()), fault.http == 503 ? "no_room" : "invalid", fault.code);
  }
  if (ready_.restores_only) {
    exchange_.send_json(200, text_of({{"object", "session"}, {"session", session_answer(session_.kv)}}));
    return release_all();
  }
  ready_.request.options.session = session_.session;
  ready_.request.options.releases_session = true;
  submit();
}

void Flight::submit() {
  head_.usage_comes = request().include_usage;
  head_.sampling = request().options.generate.sampling;
  RequestOptions& options = ready_.request.options;
  if (const std::size_t most = deck_.steps.most_at_once(options.tenant); ready_.prompts.size() > most)
    return refuse(400,
                  invalid_argument("'prompt' has {} prompts, and at most {} of one caller can wait here; send them in "
                                   "several requests",
                                   ready_.prompts.size(), most)
                      .about({"prompt"}),
                  "invalid");
  parts_.resize(std::max<std::size_t>(1, ready_.prompts.size()));
  for (Part& part : parts_) part.samples.resize(static_cast<std::size_t>(options.samples));
  left_ = parts_.size() * static_cast<std::size_t>(options.samples);
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    RequestOptions one = options;
    one.label = parts_.size() == 1 ? head_.id : fmt::format("{}.{}", head_.id, part);
    if (!ready_.prompts.empty()) {
      one.tokens = std::move(ready_.prompts[part].prompt.tokens);
      one.template_stops = std::move(ready_.prompts[part].prompt.stops);
    } else if (!request().prompts.empty()) {
      one.prompt = request().prompts.front().text;
      one.tokens = request().prompts.front().tokens;
    }
    if (const Status status = submit_part(part, std::move(one)); !status.ok())
      return refuse(429, status, "queue_full", "queue_full");
  }
  options.session.reset();
  options.messages.clear();
}

Status Flight::submit_part(std::size_t part, RequestOptions options) {
  StepThread::Listener listener;
  listener.accepted = [self = shared_from_this()](const Status& status) { self->accepted(status); };
  listener.happened = [self = shared_from_this(), part](const Event& event) {
    try {
      self->happened(part, event);
    } catch (const std::bad_alloc&) {  // the events of others come behind this one
      self->end_without_memory();
    }
  };
  KVASIR_ASSIGN_OR_RETURN(parts_[part].ticket, deck_.steps.submit(std::move(options), std::move(listener)));
  return {};
}

void Flight::accepted(const Status& status) {
  if (over_) return;
  if (!status.ok()) {
    if (status.code() == StatusCode::kIo) return fail(503, status, "no_memory");
    const Status said = in_body(status);
    report_fault(http_status(said), said);
    deck_.traffic.on_refused(said.code() == StatusCode::kResourceExhausted ? "too_large" : "invalid",
                             exchange_.request.address, exchange_.request.path);
    if (!streams_) {
      exchange_.refuse(said);
    } else {
      exchange_.answer->write(event_of(error_of(said)));
      exchange_.answer->end();
    }
    return release_all();
  }
  if (deck_.queue_timeout.count() == 0) begin_stream();
}

void Flight::begin_stream() {
  if (!request().stream || std::exchange(streams_, true)) return;
  exchange_.answer->begin_stream();
  std::string chunks;  // one write, however many choices there are
  for (std::size_t part = 0; part < parts_.size(); ++part)
    for (std::size_t sample = 0; sample < parts_[part].samples.size(); ++sample)
      chunks += event_of(first_chunk(head_, choice_of(part, sample), &parts_[part].samples[sample].offset));
  exchange_.answer->write(chunks);
}

void Flight::happened(std::size_t part, const Event& event) {
  if (over_) return;
  if (!std::exchange(began_, true)) first_event_ = Clock::now();
  begin_stream();
  const auto number = static_cast<std::size_t>(event.sample);
  Sample& sample = parts_[part].samples[number];
  const int index = choice_of(part, number).index;
  switch (event.kind) {
    case Event::Kind::kPrompt:
      parts_[part].prompt_read = event.done;
      note_progress();
      break;
    case Event::Kind::kText:
      note_text(sample);
      note_progress();
      if (request().stream)
        exchange_.answer->write(
            event_of(text_chunk(head_, index, event.text, event.choices, request().logprobs, &sample.offset)));
      break;
    case Event::Kind::kFailed: fail(event.status); break;
    case Event::Kind::kFinished:
      sample.result = event.result;
      if (request().stream)
        exchange_.answer->write(
            event_of(last_chunk(head_, choice_of(part, number), event.choices, request().logprobs, &sample.offset)));
      if (--left_ == 0) ended();
      break;
  }
}

void Flight::note_text(Sample& sample) {
  const auto now = Clock::now();
  if (record_.first_token_seconds < 0) record_.first_token_seconds = seconds_between(arrived_, now);
  if (sample.newest_text != Clock::time_point()) deck_.traffic.on_token_gap(seconds_between(sample.newest_text, now));
  sample.newest_text = now;
  ++sample.texts;
}

void Flight::ended() {
  if (session_.session == nullptr) return answer();
  at_desk_ = true;
  deck_.sessions->save(
      name_, session_.session, [self = shared_from_this()] { return !self->cancelled_; },
      [self = shared_from_this()](const Result<std::uint64_t>& bytes) { self->saved(bytes); });
}

void Flight::saved(const Result<std::uint64_t>& bytes) {
  at_desk_ = false;
  if (over_) return release_all();
  if (!bytes.ok()) {
    const Fault fault = fault_of_session(bytes.status());
    return fail(fault.http, bytes.status(), fault.code);
  }
  session_bytes_ = *bytes;
  answer();
}

void Flight::answer() {
  report_finished(finish_reason_name(first().result.finish_reason), 200);
  if (!request().stream) {
    Json whole = answer_of(head_, best_choices(), usage(), request().logprobs);
    if (!session_route_.empty()) {
      whole.erase("choices");
      whole["object"] = "session";
    }
    add_extras(whole);
    exchange_.send_json(200, text_of(whole));
    return release_all();
  }
  if (session_bytes_ > 0 || request().hints.given) {
    Json extra = extra_chunk(head_);
    add_extras(extra);
    exchange_.answer->write(event_of(extra));
  }
  if (request().include_usage) exchange_.answer->write(event_of(usage_chunk(head_, usage())));
  exchange_.answer->write("data: [DONE]\n\n");
  exchange_.answer->end();
  release_all();
}

void Flight::add_extras(Json& answer) const {
  if (request().hints.given) answer["kv_hints"] = hints_answer(request().hints);
  if (session_bytes_ == 0) return;
  answer["session"] = session_answer(first().result.kv);
  answer["session"]["saved"] = true;
  answer["session"]["bytes"] = session_bytes_;
}

// `kv`: of the session now.
Json Flight::session_answer(const KvReport& kv) const {
  Json json = {{"id", name_.id},
               {"restored", session_.restored},
               {"restored_tokens", session_.kv.seen},
               {"tokens", kv.seen},
               {"kept", kv.kept},
               {"policy", kv.policy},
               {"codec", kv.codec},
               {"kv_bytes", kv.bytes}};
  if (session_.other_arithmetic)
    json["warning"] = "written by other kernels: later tokens may differ from what they would have been";
  return json;
}

// Logs what is the server's fault; does nothing for what is the request's.
void Flight::report_fault(int http, const Status& status) {
  if (http >= 500) deck_.traffic.on_fault(record_, http, status.message());
}

// The answer cannot be completed, and its cause is no fault of the request.
void Flight::fail(int http, const Status& status, std::string_view code) {
  if (code.empty()) return fail(status);
  report_fault(http, status);
  report_finished("error", streams_ ? 200 : http);
  tell_failure(http, status.message(), code);
}

void Flight::tell_failure(int http, std::string_view message, std::string_view code) {
  if (!streams_) {
    exchange_.refuse(http, message, code, retry_fields(http));
  } else {
    exchange_.answer->write(event_of(error_of(http, message, code)));
    exchange_.answer->end();
  }
  release_all();
}

void Flight::cut_off() {
  if (over_) return;
  if (parts_.empty()) {
    over_ = true;
    deck_.traffic.on_refused("draining", exchange_.request.address, exchange_.request.path);
  } else {
    report_finished(kShutdown, streams_ ? 200 : 503);
  }
  tell_failure(503, kCutOff, kShutdown);
}

// The answer cannot be completed.
void Flight::fail(const Status& status) {
  // What is not about the policy, which the text has outgrown, is about the server's memory.
  const std::vector<std::string_view>& settings = status.settings();
  if (status.code() == StatusCode::kResourceExhausted && (settings.empty() || settings.front() != "policy"))
    return fail(503, in_body(status), "no_memory");
  report_fault(http_status(status), status);
  report_finished("error", streams_ ? 200 : http_status(status));
  if (!streams_) {
    exchange_.refuse(in_body(status));
  } else {
    exchange_.answer->write(event_of(error_of(in_body(status))));
    exchange_.answer->end();
  }
  release_all();
}

// Where the system has no memory even for the error, the connection closes.
void Flight::end_without_memory() {
  try {
    fail(503, exhausted("the server has no memory left for the answer; try again later"), "no_memory");
  } catch (const std::bad_alloc&) {
    over_ = cancelled_ = true;
    exchange_.answer.reset();
  }
}

// The request was not taken.
void Flight::refuse(int http, const Status& status, std::string_view reason, std::string_view code) {
  deck_.traffic.on_refused(reason, exchange_.request.address, exchange_.request.path);
  if (code.empty()) {
    exchange_.refuse(status);
  } else {
    exchange_.refuse(http, status.message(), code, retry_fields(http));
  }
  release_all();
}

// The client has gone.
void Flight::leave() {
  if (std::exchange(over_, true)) return;
  cancelled_ = true;
  if (!parts_.empty()) report_finished("abandoned", 499);
  release_all();
}

// Gives back all that the flight holds. While the session is being opened or written, it and its name come later.
void Flight::release_all() {
  over_ = cancelled_ = true;
  if (left_ > 0)
    for (const Part& part : parts_)
      if (part.ticket != Ticket{}) deck_.steps.cancel(part.ticket);
  ready_.request.options.session.reset();
  if (!at_desk_) {
    deck_.steps.retire(std::exchange(session_.session, nullptr));
    if (std::exchange(took_, false)) deck_.sessions->give_back(name_);
  }
  exchange_.answer.reset();
  exchange_.caller.hold.reset();
}

Choice Flight::choice_of(std::size_t part, std::size_t sample) const {
  Choice choice;
  choice.index = static_cast<int>(part) * request().n + static_cast<int>(sample);
  choice.result = &parts_[part].samples[sample].result;
  if (part < ready_.prompts.size()) {
    choice.echo = ready_.prompts[part].echo;
    choice.pieces = ready_.prompts[part].pieces;
    choice.most_tokens = ready_.prompts[part].most_tokens;
  }
  if (choice.most_tokens < 0 && !request().token_limit_given)
    choice.most_tokens = request().options.generate.max_tokens;
  return choice;
}

std::vector<Choice> Flight::best_choices() const {
  std::vector<Choice> best;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    std::vector<std::size_t> order(parts_[part].samples.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (std::ssize(order) > request().n)
      std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t sample) {
        return mean_log_probability(parts_[part].samples[sample].result);
      });
    for (std::size_t place = 0; place < static_cast<std::size_t>(request().n); ++place) {
      best.push_back(choice_of(part, order[place]));
      best.back().index = static_cast<int>(part) * request().n + static_cast<int>(place);
    }
  }
  return best;
}

Usage Flight::usage() const {
  Usage usage;
  for (const Part& part : parts_) {
    // Samples that did not end have no result: what was read and told of them counts.
    usage.prompt += std::max(part.samples.front().result.prompt_tokens, part.prompt_read);
    usage.cached += part.samples.front().result.cached;
    for (const Sample& sample : part.samples) usage.completion += std::max(sample.result.tokens, sample.texts);
  }
  return usage;
}

void Flight::count_tokens() {
  const Usage used = usage();
  record_.prompt_tokens = used.prompt;
  record_.cached_tokens = used.cached;
  record_.generated_tokens = used.completion;
}

// Reports tokens during a request, so that a killed server loses less than a second of them.
void Flight::note_progress() {
  constexpr std::chrono::milliseconds kPeriod{250};
  const auto now = Clock::now();
  if (now - progress_told_ < kPeriod) return;
  progress_told_ = now;
  count_tokens();
  deck_.traffic.on_progress(record_);
  record_.told_prompt = record_.prompt_tokens;
  record_.told_cached = record_.cached_tokens;
  record_.told_generated = record_.generated_tokens;
}

// The policy of an answer that is cut off.
std::string Flight::policy_so_far() const {
  if (session_.session != nullptr) return session_.kv.policy;
  PlanRequest request;
  request.policy = ready_.request.options.policy;
  request.protect = ready_.request.options.protect;
  request.prompt = 1;
  request.max_tokens = 0;
  const Result<RequestPlan> plan = deck_.steps.plan(request);  // for its canonical name
  return plan.ok() ? plan->policy : request.policy;
}

// The times of an answer that is cut off, as far as they have been told: of its first pass, the end.
void Flight::note_times_so_far() {
  record_.queue_seconds = seconds_between(arrived_, first_event_);
  const bool reads = record_.first_token_seconds < 0;
  const double read = reads ? seconds_between(arrived_, Clock::now()) : record_.first_token_seconds;
  record_.prefill_seconds = std::max(read - record_.queue_seconds, 0.0);
  if (!reads) record_.decode_seconds = seconds_between(arrived_, Clock::now()) - read;
}

// Once: a client that leaves while the end is told changes nothing.
void Flight::report_finished(std::string_view finish_reason, int http) {
  over_ = true;
  const GenerateResult& result = first().result;
  record_.finish_reason = finish_reason;
  record_.http = http;
  record_.policy = result.kv.policy.empty() ? policy_so_far() : result.kv.policy;
  count_tokens();
  for (const Part& part : parts_)
    for (const Sample& sample : part.samples) {
      record_.preemptions += sample.result.preemptions;
      record_.recomputed_tokens += sample.result.recomputed;
    }
  record_.dead_share = result.kv.dead_share;
  record_.seen = result.kv.seen;
  record_.kept = result.kv.kept;
  if (left_ == 0) {
    record_.queue_seconds = result.queue_seconds;
    record_.prefill_seconds = result.prompt_seconds - result.queue_seconds;
    record_.decode_seconds = result.seconds;
  } else if (began_) {
    note_times_so_far();
  }
  record_.total_seconds = seconds_between(arrived_, Clock::now());
  deck_.traffic.on_finished(record_);
}

}  // namespace kvasir::server

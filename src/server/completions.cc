#include "server/completions.h"

#include <fmt/core.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "server/api_request.h"
#include "server/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

// One completion under way. Lives as long as the engine or the connection may call it.
class Completions::Flight : public std::enable_shared_from_this<Flight> {
 public:
  // `waits_in_silence`: a stream begins with the first pass, so that a request that never has one can be refused.
  Flight(StepThread& steps, Traffic& traffic, ApiRequest request, AnswerHead head, Exchange exchange,
         bool waits_in_silence)
      : steps_(steps),
        traffic_(traffic),
        request_(std::move(request)),
        head_(std::move(head)),
        exchange_(std::move(exchange)),
        waits_in_silence_(waits_in_silence) {
    results_.resize(static_cast<std::size_t>(request_.options.samples));
    newest_text_.resize(results_.size());
    record_.id = head_.id;
    record_.path = exchange_.request.path;
    record_.tenant = exchange_.caller.tenant;
    record_.samples = request_.options.samples;
  }

  void start() {
    StepThread::Listener listener;
    listener.accepted = [self = shared_from_this()](const Status& status) { self->accepted(status); };
    listener.happened = [self = shared_from_this()](const Event& event) { self->happened(event); };
    const Result<Ticket> ticket = steps_.submit(request_.options, std::move(listener));
    if (!ticket.ok()) {
      traffic_.on_refused("queue_full");
      return exchange_.refuse(429, ticket.status().message(), "queue_full", {{"Retry-After", "1"}});
    }
    ticket_ = *ticket;
    exchange_.answer->on_closed([self = shared_from_this(), ticket = *ticket] {
      if (std::exchange(self->over_, true)) return;
      self->steps_.cancel(ticket);
      self->tell("abandoned", 499);
    });
  }

  // Ends the request if it has not had a pass by then. Returns whether it still waits.
  bool wait_until(Clock::time_point latest_arrival) {
    if (over_ || began_) return false;
    if (arrived_ > latest_arrival) return true;
    steps_.cancel(ticket_);
    traffic_.on_refused("queue_timeout");
    finish([&] {
      exchange_.refuse(503, "the server is busy: the request has waited too long; try again later", "queue_timeout",
                       {{"Retry-After", "5"}});
    });
    return false;
  }

 private:
  void accepted(const Status& status) {
    if (over_) return;
    if (!status.ok()) {
      traffic_.on_refused(status.code() == StatusCode::kResourceExhausted ? "too_large" : "invalid");
      return finish([&] { exchange_.refuse(status); });
    }
    if (!waits_in_silence_) begin_stream();
  }

  void begin_stream() {
    if (!request_.stream || std::exchange(streams_, true)) return;
    HttpAnswer& answer = *exchange_.answer;
    answer.begin_stream();
    for (int sample = 0; sample < request_.options.samples; ++sample) {
      answer.write(event_of(first_chunk(head_, sample)));
      if (request_.echo) answer.write(event_of(text_chunk(head_, sample, request_.options.prompt)));
    }
  }

  void happened(const Event& event) {
    if (over_) return;
    began_ = true;
    begin_stream();
    const auto sample = static_cast<std::size_t>(event.sample);
    switch (event.kind) {
      case Event::Kind::kPrompt: break;
      case Event::Kind::kText:
        note_text(sample);
        if (request_.stream) exchange_.answer->write(event_of(text_chunk(head_, event.sample, event.text)));
        break;
      case Event::Kind::kFailed: failed(event.status); break;
      case Event::Kind::kFinished:
        if (request_.stream)
          exchange_.answer->write(event_of(last_chunk(head_, event.sample, event.result, request_.logprobs)));
        results_[sample] = event.result;
        if (++ended_ == request_.options.samples) complete();
        break;
    }
  }

  void note_text(std::size_t sample) {
    const auto now = Clock::now();
    if (record_.first_token_seconds < 0) record_.first_token_seconds = seconds_between(arrived_, now);
    if (newest_text_[sample] != Clock::time_point()) traffic_.on_token_gap(seconds_between(newest_text_[sample], now));
    newest_text_[sample] = now;
  }

  void failed(const Status& status) {
    finish([&] {
      tell("error", request_.stream ? 200 : http_status(status));
      if (!request_.stream) return exchange_.refuse(status);
      exchange_.answer->write(event_of(error_of(status)));
      exchange_.answer->end();
    });
  }

  void complete() {
    finish([&] {
      tell(finish_reason_name(results_.front().finish_reason), 200);
      if (!request_.stream) {
        const std::string_view prefix = request_.echo ? std::string_view(request_.options.prompt) : std::string_view();
        return exchange_.send_json(200, text_of(answer_of(head_, results_, prefix, request_.logprobs)));
      }
      if (request_.include_usage) {
        std::int64_t tokens = 0;
        for (const GenerateResult& result : results_) tokens += result.tokens;
        exchange_.answer->write(event_of(usage_chunk(head_, results_.front().prompt_tokens, tokens)));
      }
      exchange_.answer->write("data: [DONE]\n\n");
      exchange_.answer->end();
    });
  }

  void tell(std::string_view finish_reason, int http) {
    const GenerateResult& first = results_.front();
    record_.finish_reason = finish_reason;
    record_.http = http;
    record_.policy = first.kv.policy;
    record_.prompt_tokens = first.prompt_tokens;
    record_.cached_tokens = first.cached;
    record_.recomputed_tokens = first.recomputed;
    record_.preemptions = first.preemptions;
    record_.dead_share = first.kv.dead_share;
    record_.seen = first.kv.seen;
    record_.kept = first.kv.kept;
    for (const GenerateResult& result : results_) record_.generated_tokens += result.tokens;
    if (ended_ > 0) {
      record_.queue_seconds = first.queue_seconds;
      record_.prefill_seconds = first.prompt_seconds - first.queue_seconds;
      record_.decode_seconds = first.seconds;
    }
    record_.total_seconds = seconds_between(arrived_, Clock::now());
    traffic_.on_finished(record_);
  }

  template <class Say>
  void finish(const Say& say) {
    over_ = true;
    say();
    exchange_.answer.reset();
  }

  StepThread& steps_;
  Traffic& traffic_;
  ApiRequest request_;
  AnswerHead head_;
  Exchange exchange_;
  RequestRecord record_;
  Clock::time_point arrived_ = Clock::now();
  std::vector<Clock::time_point> newest_text_;  // by sample
  std::vector<GenerateResult> results_;
  int ended_ = 0;
  Ticket ticket_{};
  const bool waits_in_silence_;
  bool began_ = false;    // it has had a pass
  bool streams_ = false;  // the stream has begun
  bool over_ = false;
};

Completions::Completions(StepThread& steps, Traffic& traffic, CompletionOptions options)
    : steps_(steps),
      traffic_(traffic),
      options_(std::move(options)),
      id_prefix_(fmt::format("{:08x}", std::random_device{}())) {}

void Completions::add_routes(Router& router) {
  router.add("POST", "/v1/chat/completions", [this](Exchange exchange) { complete(std::move(exchange), true); });
  router.add("POST", "/v1/completions", [this](Exchange exchange) { complete(std::move(exchange), false); });
}

void Completions::refuse(const Exchange& exchange, const Status& status) {
  traffic_.on_refused("invalid");
  exchange.refuse(status);
}

void Completions::complete(Exchange exchange, bool chat) {
  if (draining_) {
    traffic_.on_refused("draining");
    return exchange.refuse(503, "the server is going down", {}, {{"Retry-After", "5"}});
  }
  const Result<Json> body = parse_body(exchange.request.body);
  if (!body.ok()) return refuse(exchange, body.status());
  Result<ApiRequest> asked = read_request(*body, chat);
  if (!asked.ok()) return refuse(exchange, asked.status());
  if (!asked->model.empty() && asked->model != options_.model) {
    traffic_.on_refused("unknown_model");
    return exchange.refuse(
        404, fmt::format("there is no model '{}' here; there is '{}'", asked->model.substr(0, 200), options_.model),
        "model_not_found");
  }
  RequestOptions& options = asked->options;
  if (options.policy.empty()) options.policy = options_.policy;
  options.salt = exchange.caller.salt + options.salt;
  options.tenant = exchange.caller.tenant_number;
  options.priority += exchange.caller.priority;
  AnswerHead head{chat, fmt::format("{}-{}-{}", chat ? "chatcmpl" : "cmpl", id_prefix_, next_++), std::time(nullptr),
                  options_.model};
  const bool may_end_waiting = options_.queue_timeout.count() > 0;
  const auto flight = std::make_shared<Flight>(steps_, traffic_, std::move(*asked), std::move(head),
                                               std::move(exchange), may_end_waiting);
  if (may_end_waiting) waiting_.push_back(flight);
  flight->start();
}

void Completions::end_long_waits() {
  std::erase_if(waiting_, [latest = Clock::now() - options_.queue_timeout](const std::weak_ptr<Flight>& waiting) {
    const std::shared_ptr<Flight> flight = waiting.lock();
    return flight == nullptr || !flight->wait_until(latest);
  });
}

}  // namespace kvasir::server

#include "server/service.h"

#include <fmt/core.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

#include "server/api_request.h"
#include "server/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kJson = "application/json";
constexpr std::chrono::seconds kLongestPass{30};

void answer_error(HttpAnswer& answer, int http, std::string_view message, std::string_view code = {},
                  const HttpFields& fields = {}) {
  answer.send(http, kJson, text_of(error_of(http, message, code)), fields);
}

void answer_error(HttpAnswer& answer, const Status& status) {
  answer.send(http_status(status), kJson, text_of(error_of(status)));
}

}  // namespace

// One completion under way.
class Service::Flight : public std::enable_shared_from_this<Flight> {
 public:
  Flight(StepThread& steps, ApiRequest request, AnswerHead head, std::shared_ptr<HttpAnswer> answer)
      : steps_(steps), request_(std::move(request)), head_(std::move(head)), answer_(std::move(answer)) {
    results_.resize(static_cast<std::size_t>(request_.options.samples));
  }

  void start() {
    StepThread::Listener listener;
    listener.accepted = [self = shared_from_this()](const Status& status) { self->accepted(status); };
    listener.happened = [self = shared_from_this()](const Event& event) { self->happened(event); };
    const Result<Ticket> ticket = steps_.submit(request_.options, std::move(listener));
    if (!ticket.ok())
      return answer_error(*answer_, 429, ticket.status().message(), "queue_full", {{"Retry-After", "1"}});
    answer_->on_closed([self = shared_from_this(), ticket = *ticket] {
      self->over_ = true;
      self->steps_.cancel(ticket);
    });
  }

 private:
  void accepted(const Status& status) {
    if (over_) return;
    if (!status.ok()) return finish([&] { answer_error(*answer_, status); });
    if (!request_.stream) return;
    answer_->begin_stream();
    for (int sample = 0; sample < request_.options.samples; ++sample) {
      answer_->write(event_of(first_chunk(head_, sample)));
      if (request_.echo) answer_->write(event_of(text_chunk(head_, sample, request_.options.prompt)));
    }
  }

  void happened(const Event& event) {
    if (over_) return;
    switch (event.kind) {
      case Event::Kind::kPrompt: break;
      case Event::Kind::kText:
        if (request_.stream) answer_->write(event_of(text_chunk(head_, event.sample, event.text)));
        break;
      case Event::Kind::kFailed: failed(event.status); break;
      case Event::Kind::kFinished:
        if (request_.stream)
          answer_->write(event_of(last_chunk(head_, event.sample, event.result, request_.logprobs)));
        results_[static_cast<std::size_t>(event.sample)] = event.result;
        if (++ended_ == request_.options.samples) complete();
        break;
    }
  }

  void failed(const Status& status) {
    finish([&] {
      if (!request_.stream) return answer_error(*answer_, status);
      answer_->write(event_of(error_of(status)));
      answer_->end();
    });
  }

  void complete() {
    finish([&] {
      if (!request_.stream) {
        const std::string_view prefix = request_.echo ? std::string_view(request_.options.prompt) : std::string_view();
        return answer_->send(200, kJson, text_of(answer_of(head_, results_, prefix, request_.logprobs)));
      }
      if (request_.include_usage) {
        std::int64_t tokens = 0;
        for (const GenerateResult& result : results_) tokens += result.tokens;
        answer_->write(event_of(usage_chunk(head_, results_.front().prompt_tokens, tokens)));
      }
      answer_->write("data: [DONE]\n\n");
      answer_->end();
    });
  }

  template <class Say>
  void finish(const Say& say) {
    over_ = true;
    say();
    answer_.reset();
  }

  StepThread& steps_;
  ApiRequest request_;
  AnswerHead head_;
  std::shared_ptr<HttpAnswer> answer_;
  std::vector<GenerateResult> results_;
  int ended_ = 0;
  bool over_ = false;
};

Service::Service(StepThread& steps, ServiceOptions options)
    : steps_(steps),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      id_prefix_(fmt::format("{:08x}", std::random_device{}())) {}

void Service::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  struct Route {
    std::string_view method, path;
    void (*act)(Service&, const HttpRequest&, std::shared_ptr<HttpAnswer>&);
  };
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions",
       [](Service& self, const HttpRequest& asked, auto& to) { self.complete(asked, std::move(to), true); }},
      {"POST", "/v1/completions",
       [](Service& self, const HttpRequest& asked, auto& to) { self.complete(asked, std::move(to), false); }},
      {"GET", "/v1/models", [](Service& self, const HttpRequest&, auto& to) { self.list_models(*to); }},
      {"GET", "/health", [](Service& self, const HttpRequest&, auto& to) { self.health(*to); }},
      {"GET", "/ready", [](Service& self, const HttpRequest&, auto& to) { self.ready(*to); }},
  };
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string_view allowed;
  for (const Route& route : kRoutes) {
    if (route.path != request.path) continue;
    if (route.method == method) return route.act(*this, request, answer);
    allowed = route.method;
  }
  if (!allowed.empty())
    return answer_error(*answer, 405, fmt::format("this path takes {}", allowed), {}, {{"Allow", std::string(allowed)}});
  answer_error(*answer, 404, "there is no such path");
}

void Service::complete(const HttpRequest& request, std::shared_ptr<HttpAnswer> answer, bool chat) {
  if (draining_) return answer_error(*answer, 503, "the server is going down", {}, {{"Retry-After", "5"}});
  const Result<Json> body = parse_body(request.body);
  if (!body.ok()) return answer_error(*answer, body.status());
  Result<ApiRequest> asked = read_request(*body, chat);
  if (!asked.ok()) return answer_error(*answer, asked.status());
  if (!knows_model(asked->model))
    return answer_error(*answer, 404, fmt::format("there is no model '{}' here; there is '{}'", asked->model.substr(0, 200),
                                                  options_.model),
                        "model_not_found");
  if (asked->options.policy.empty()) asked->options.policy = options_.policy;
  AnswerHead head{chat, fmt::format("{}-{}-{}", chat ? "chatcmpl" : "cmpl", id_prefix_, next_++), std::time(nullptr),
                  options_.model};
  std::make_shared<Flight>(steps_, std::move(*asked), std::move(head), std::move(answer))->start();
}

void Service::list_models(HttpAnswer& answer) const {
  const Json model = {{"id", options_.model},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "kvasir"},
                      {"max_model_len", steps_.model().context}};
  answer.send(200, kJson, text_of({{"object", "list"}, {"data", Json::array({model})}}));
}

void Service::health(HttpAnswer& answer) const {
  if (steps_.busy() > kLongestPass) return answer_error(answer, 503, "a pass has been running for more than 30 s");
  answer.send(200, kJson, R"({"status":"ok"})");
}

void Service::ready(HttpAnswer& answer) const {
  if (draining_) return answer_error(answer, 503, "the server is going down");
  answer.send(200, kJson, R"({"status":"ready"})");
}

}  // namespace kvasir::server

#include "server/api/text_answer.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/api/api_request.h"
#include "server/api/api_response.h"

namespace kvasir::server {
namespace {

ErrorText no_memory_error() {
  return {503, "the server has no memory for this request now; try again later", "no_memory", {}};
}

}  // namespace

HttpFields retry_fields(int http) {
  HttpFields fields;
  if (http == 429 || http == 503) fields.emplace_back("Retry-After", "1");
  return fields;
}

void answer_on(TextThread& texts, Exchange exchange, std::function<Result<std::string>(Exchange&)> work,
               std::function<void()> done) {
  const auto result = std::make_shared<std::optional<Result<std::string>>>();
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const Status queued = texts.run(
      shared->request.body.size(), [result, shared, work = std::move(work)] { *result = work(*shared); },
      [result, shared, done] {
        if (done) done();
        if (!*result) return shared->refuse(no_memory_error(), retry_fields(503));
        Result<std::string>& body = **result;
        if (!body.ok()) return shared->refuse(body.status());
        shared->send_json(200, std::move(*body), shared->fields);
      },
      shared->caller.tenant);
  if (queued.ok()) return;
  if (done) done();
  shared->refuse(429, queued.message(), "queue_full", retry_fields(429));
}

void check_before_loading(const ModelDesk& models, TextThread& texts, std::string_view name, std::string_view body,
                          const Caller& caller, std::function<void(const std::optional<ErrorText>&)> next) {
  const std::optional<ModelDesk::Info> model = models.find(name);
  if (!model || model->open) return next({});
  const auto parsed = std::make_shared<std::optional<Status>>();
  const Status queued = texts.run(
      body.size(), [parsed, body] { *parsed = parse_body(body).status(); },
      [parsed, next] {
        if (!*parsed) return next(no_memory_error());
        next((*parsed)->ok() ? std::nullopt : std::optional(error_text(**parsed)));
      },
      caller.tenant);
  if (!queued.ok()) next(ErrorText{429, queued.message(), "queue_full", {}});
}

void answer_of_model(ModelDesk& models, TextThread& texts, Exchange exchange, const Result<std::string>& name,
                     std::function<Result<std::string>(const Served&, Exchange&)> work) {
  if (!name.ok()) return exchange.refuse(name.status());
  const std::shared_ptr<HttpAnswer> answer = exchange.answer;
  const int tenant = exchange.caller.tenant_number;
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const auto run = [&texts, shared, work = std::move(work)](Result<ModelLease> lease) {
    if (!lease.ok()) {
      const ErrorText error = error_of_model(lease.status());
      return shared->refuse(error, retry_fields(error.http));
    }
    const auto held = std::make_shared<ModelLease>(std::move(*lease));
    answer_on(
        texts, std::move(*shared), [&served = **held, work](Exchange& asked) { return work(served, asked); },
        [held] { held->reset(); });
  };
  const auto waits = std::make_shared<ModelDesk::WaitId>(0);
  const auto closed = std::make_shared<bool>(false);
  answer->on_closed([&models, waits, closed] {
    *closed = true;
    models.forget(*waits);
  });
  check_before_loading(
      models, texts, *name, shared->request.body, shared->caller,
      [&models, shared, waits, closed, tenant, run, name = *name](const std::optional<ErrorText>& error) {
        if (*closed) return;
        if (error) return shared->refuse(*error, retry_fields(error->http));
        *waits = models.ask(name, tenant, run);
      });
}

}  // namespace kvasir::server

#include "server/api/text_answer.h"

#include <memory>
#include <optional>
#include <utility>

namespace kvasir::server {

void answer_on(TextThread& texts, Exchange exchange, std::function<Result<std::string>(Exchange&)> work,
               std::function<void()> done) {
  const auto result = std::make_shared<std::optional<Result<std::string>>>();
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const Status queued = texts.run(
      shared->request.body.size(), [result, shared, work = std::move(work)] { *result = work(*shared); },
      [result, shared, done] {
        if (done) done();
        if (!*result)
          return shared->refuse(503, "the server has no memory for this request now; try again later", "no_memory",
                                {{"Retry-After", "1"}});
        Result<std::string>& body = **result;
        if (!body.ok()) return shared->refuse(body.status());
        shared->send_json(200, std::move(*body), shared->fields);
      },
      shared->caller.tenant);
  if (queued.ok()) return;
  if (done) done();
  shared->refuse(429, queued.message(), "queue_full", {{"Retry-After", "1"}});
}

void answer_of_model(ModelDesk& models, TextThread& texts, Exchange exchange, const std::string& name,
                     std::function<Result<std::string>(const Served&, Exchange&)> work) {
  const std::shared_ptr<HttpAnswer> answer = exchange.answer;
  const int tenant = exchange.caller.tenant_number;
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const auto run = [&texts, shared, work = std::move(work)](Result<ModelLease> lease) {
    if (!lease.ok()) {
      const ErrorText error = error_of_model(lease.status());
      HttpFields fields;
      if (error.http == 429 || error.http == 503) fields.emplace_back("Retry-After", "1");
      return shared->refuse(error, fields);
    }
    const auto held = std::make_shared<ModelLease>(std::move(*lease));
    answer_on(
        texts, std::move(*shared), [&served = **held, work](Exchange& asked) { return work(served, asked); },
        [held] { held->reset(); });
  };
  const auto waits = std::make_shared<ModelDesk::WaitId>(0);
  answer->on_closed([&models, waits] { models.forget(*waits); });
  *waits = models.ask(name, tenant, run);
}

}  // namespace kvasir::server

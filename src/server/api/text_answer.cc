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
        const Status& status = body.status();
        if (status.code() == StatusCode::kNotFound && !status.settings().empty() &&
            status.settings().front() == "model")
          return shared->refuse(404, status.message(), "model_not_found");
        if (!body.ok()) return shared->refuse(status);
        shared->send_json(200, std::move(*body), shared->fields);
      },
      shared->caller.tenant);
  if (queued.ok()) return;
  if (done) done();
  shared->refuse(429, queued.message(), "queue_full", {{"Retry-After", "1"}});
}

}  // namespace kvasir::server

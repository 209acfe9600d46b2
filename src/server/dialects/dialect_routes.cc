#include "server/dialects/dialect_routes.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/ignored_fields.h"
#include "server/api/prepare.h"
#include "server/api/text_answer.h"

namespace kvasir::server {

DialectRoutes::DialectRoutes(Completions& completions, const StepThread& steps, TextThread& texts, std::string model,
                             SamplingOptions sampling)
    : completions_(completions),
      steps_(steps),
      texts_(texts),
      model_(std::move(model)),
      sampling_(std::move(sampling)) {}

void DialectRoutes::add_routes(Router& router) {
  const std::pair<std::string_view, const Dialect*> table[] = {
      {"/v1/chat/completions", &openai_chat_},
      {"/v1/completions", &openai_completions_},
      {"/v1/messages", &anthropic_},
  };
  for (const auto& [path, dialect] : table)
    router.add(
        "POST", path, [this, dialect = dialect](Exchange exchange) { completions_.fly(std::move(exchange), *dialect); },
        Router::Access::kCallers, dialect->error_form());
  router.add(
      "POST", "/v1/messages/count_tokens",
      [this](Exchange exchange) {
        answer_on(texts_, std::move(exchange), [this](Exchange& asked) { return count_tokens(asked); });
      },
      Router::Access::kCallers, anthropic_error);
}

Result<std::string> DialectRoutes::count_tokens(Exchange& exchange) const {
  KVASIR_ASSIGN_OR_RETURN(const nlohmann::json body, parse_body(exchange.request.body));
  const ReadContext context{exchange.request, exchange.caller, steps_.text(), sampling_};
  KVASIR_ASSIGN_OR_RETURN(const ApiRequest request, read_anthropic(body, context, true));
  if (!request.model.empty() && request.model != model_) return unknown_model(request.model, model_);
  KVASIR_ASSIGN_OR_RETURN(const PromptTokens prompt, encode_request_text(steps_.text(), request.options));
  if (!request.ignored.empty()) exchange.fields.emplace_back(kIgnoredHeader, ignored_header(request.ignored));
  return text_of({{"input_tokens", prompt.tokens.size()}});
}

}  // namespace kvasir::server

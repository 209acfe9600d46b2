#include "server/dialects/dialect_routes.h"

#include <utility>

namespace kvasir::server {

DialectRoutes::DialectRoutes(Completions& completions, std::int64_t context)
    : completions_(completions), ollama_chat_(true, context), ollama_generate_(false, context) {}

void DialectRoutes::add_routes(Router& router) {
  const std::pair<std::string_view, const Dialect*> table[] = {
      {"/v1/chat/completions", &openai_chat_}, {"/v1/completions", &openai_completions_},
      {"/v1/messages", &anthropic_},           {"/api/chat", &ollama_chat_},
      {"/api/generate", &ollama_generate_},    {"/completion", &llama_completion_},
      {"/completions", &llama_completion_},    {"/infill", &llama_infill_},
  };
  for (const auto& [path, dialect] : table)
    router.add(
        "POST", path, [this, dialect = dialect](Exchange exchange) { completions_.fly(std::move(exchange), *dialect); },
        Router::Access::kCallers, dialect->error_form());
}

}  // namespace kvasir::server

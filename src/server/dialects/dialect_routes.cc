#include "server/dialects/dialect_routes.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir::server {
namespace {

constexpr std::string_view kNoResponse =
    "there is no such response: it was not stored, has made room for newer ones, or is another key's";

}  // namespace

DialectRoutes::DialectRoutes(Completions& completions, const ResponseStore::Limits& responses)
    : completions_(completions), responses_(responses) {}

void DialectRoutes::add_routes(Router& router) {
  const std::pair<std::string_view, const Dialect*> table[] = {
      {"/v1/chat/completions", &openai_chat_},
      {"/v1/completions", &openai_completions_},
      {"/v1/responses", &openai_responses_},
      {"/v1/messages", &anthropic_},
      {"/api/chat", &ollama_chat_},
      {"/api/generate", &ollama_generate_},
      {"/completion", &llama_completion_},
      {"/completions", &llama_completion_},
      {"/infill", &llama_infill_},
      {"/v1/embeddings", &openai_embeddings_},
      {"/api/embed", &ollama_embed_},
      {"/api/embeddings", &ollama_embeddings_},
      {"/embedding", &llama_embeddings_},
      {"/embeddings", &llama_embeddings_},
  };
  for (const auto& [path, dialect] : table)
    router.add(
        "POST", path, [this, dialect = dialect](Exchange exchange) { completions_.fly(std::move(exchange), *dialect); },
        Router::Access::kCallers, dialect->error_form());
  router.set_error_form("/v1/messages", anthropic_.error_form());
  router.set_error_form("/api/", ollama_chat_.error_form());
  router.add("GET", "/v1/responses/{id}", [this](const Exchange& exchange) { find_response(exchange); });
  router.add("DELETE", "/v1/responses/{id}", [this](const Exchange& exchange) { delete_response(exchange); });
}

void DialectRoutes::find_response(const Exchange& exchange) {
  const std::shared_ptr<const StoredResponse> found = responses_.find(exchange.caller, exchange.parameter);
  if (found == nullptr) return exchange.refuse(404, kNoResponse);
  exchange.send_json(200, found->body);
}

void DialectRoutes::delete_response(const Exchange& exchange) {
  if (!responses_.remove(exchange.caller, exchange.parameter)) return exchange.refuse(404, kNoResponse);
  exchange.send_json(200, text_of({{"id", exchange.parameter}, {"object", "response"}, {"deleted", true}}));
}

}  // namespace kvasir::server

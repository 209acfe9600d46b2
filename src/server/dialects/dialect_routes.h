// The routes that generate: which path speaks which API.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>

#include "server/api/completions.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/embeddings.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai.h"
#include "server/dialects/responses.h"
#include "server/http/router.h"

namespace kvasir::server {

class DialectRoutes {
 public:
  // `completions` must outlive this.
  DialectRoutes(Completions& completions, const ResponseStore::Limits& responses);

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  // GET and DELETE /v1/responses/{id}, of the caller's own.
  void find_response(const Exchange& exchange);
  void delete_response(const Exchange& exchange);

  Completions& completions_;
  ResponseStore responses_;
  OpenAiResponses openai_responses_{responses_};
  OpenAiChat openai_chat_;
  OpenAiCompletions openai_completions_;
  AnthropicMessages anthropic_;
  OllamaDialect ollama_chat_{true}, ollama_generate_{false};
  Embeddings openai_embeddings_{Embeddings::Form::kOpenAi}, llama_embeddings_{Embeddings::Form::kLlama};
  Embeddings ollama_embed_{Embeddings::Form::kOllama}, ollama_embeddings_{Embeddings::Form::kOllamaOne};
  LlamaCompletion llama_completion_{false}, llama_infill_{true};
};

}  // namespace kvasir::server

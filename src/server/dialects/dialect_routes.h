// The routes that generate: which path speaks which API.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>

#include "server/api/completions.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai.h"
#include "server/http/router.h"

namespace kvasir::server {

class DialectRoutes {
 public:
  // `completions` must outlive this. `context`: the model's trained context, in tokens.
  DialectRoutes(Completions& completions, std::int64_t context);

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  Completions& completions_;
  OpenAiChat openai_chat_;
  OpenAiCompletions openai_completions_;
  AnthropicMessages anthropic_;
  OllamaDialect ollama_chat_, ollama_generate_;
  LlamaCompletion llama_completion_{false}, llama_infill_{true};
};

}  // namespace kvasir::server

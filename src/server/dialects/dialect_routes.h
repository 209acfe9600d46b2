// The routes of all dialects: which path speaks which API.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <string>

#include "kvasir/options.h"
#include "server/api/completions.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/openai.h"
#include "server/http/router.h"
#include "server/threads/step_thread.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

class DialectRoutes {
 public:
  // All must outlive this. `model`: as clients name it. `sampling`: of requests that give no temperature.
  DialectRoutes(Completions& completions, const StepThread& steps, TextThread& texts, std::string model,
                SamplingOptions sampling);

  // This must outlive the router.
  void add_routes(Router& router);

 private:
  // Runs on the text thread.
  Result<std::string> count_tokens(Exchange& exchange) const;

  Completions& completions_;
  const StepThread& steps_;
  TextThread& texts_;
  const std::string model_;
  const SamplingOptions sampling_;
  OpenAiChat openai_chat_;
  OpenAiCompletions openai_completions_;
  AnthropicMessages anthropic_;
};

}  // namespace kvasir::server

// Reads the bodies of llama-server's /completion and /infill.
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api/dialect.h"

namespace kvasir::server {

// What the answer shows of the body.
struct LlamaShown {
  GenerateOptions generate;
  std::vector<std::string> prompts;  // as they were given: texts, or the texts of tokens
  int n = 1;                         // answers to each prompt
  bool stream = false;
  bool tokens = false;         // return_tokens
  bool probabilities = false;  // n_probs
};

struct LlamaBody {
  ApiRequest request;
  LlamaShown shown;
};

// Errors: as Dialect::read.
Result<LlamaBody> read_llama(const nlohmann::json& body, bool infill, const ReadContext& context);

}  // namespace kvasir::server

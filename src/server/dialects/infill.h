// Prompts that ask for the text between a beginning and an end, for models whose vocabulary has tokens for that.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvasir/model_text.h"
#include "server/api/api_request.h"

namespace kvasir::server {

struct Infill {
  std::string prefix;
  std::string suffix;
  std::string begun = {};  // of the text between, which the answer continues
  struct File {
    std::string name;
    std::string text;
  };
  std::vector<File> files = {};  // further context
};

// Returns the prompt: files, then prefix, suffix and `begun`, each behind its control token; the tokens are found by
// the names that models give them. Errors: kUnsupported where the vocabulary lacks one; kInvalidArgument for invalid
// UTF-8.
Result<ApiPrompt> infill_prompt(const Infill& infill, const ModelText& text);

}  // namespace kvasir::server

// Reads prompts that are texts or lists of token ids.
// Errors are kInvalidArgument and name the field by about(). Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// A text, or token ids if there are any.
struct ApiPrompt {
  std::string text;
  std::vector<std::int32_t> tokens;
};

// Reads one prompt, or a list of at most `most`. A list whose first element is a number is one prompt of token ids.
// REQUIRES: `field` is a string literal.
Status read_prompts(const Fields& body, const char* field, std::size_t most, std::vector<ApiPrompt>& prompts);

}  // namespace kvasir::server

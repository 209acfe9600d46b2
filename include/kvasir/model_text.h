// Text as the model reads it: tokens, and conversations in the form of its chat template.
//
// Thread-safety: immutable; any number of threads may use a ModelText at the same time, also while the engine that it
// belongs to runs passes. Tokenizers and templates keep no state between calls: the tables of a call, such as its cache
// of words, its match data and its values, belong to that call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/request.h"
#include "kvasir/status.h"

namespace kvasir {

// A prompt that is ready to run.
struct PromptTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::string>
      stops;  // strings of the chat template that end an answer; for RequestOptions::template_stops
  std::int64_t system_tokens = 0;  // of the system message that `messages` begin with; 0 for other prompts
};

class ModelText {
 public:
  virtual ~ModelText() = default;

  // Returns the tokens that Engine::submit reads for these options: of `prompt`, `messages` (with their
  // `template_arguments`) or `tokens`. A request that has these tokens and stops in place of its text gives the same
  // answer. Errors: as Engine::submit gives for the text, kUnsupported for options with a session.
  virtual Result<PromptTokens> encode_prompt(const RequestOptions& options) const = 0;

  // Returns how many tokens a conversation that begins with these messages has before the text of its first user
  // message if the chat template writes a system message there, given or its own; else 0. For SessionOptions::protect.
  virtual Result<std::int64_t> system_tokens(std::span<const Message> messages) const = 0;

  // Returns the tokens of a text. `add_special`: with BOS and EOS where the vocabulary asks for them. `parse_special`:
  // control tokens written out in it become these tokens; otherwise they stay text. Errors: kInvalidArgument for
  // invalid UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special,
                                                   bool parse_special = false) const = 0;

  // Returns the text of tokens, control tokens by their names if `special`. The bytes need not be valid UTF-8. Errors:
  // kInvalidArgument for an id outside the vocabulary.
  virtual Result<std::string> decode(std::span<const std::int32_t> tokens, bool special) const = 0;

  // Returns the bytes of one token, perhaps part of a character; of a control token its name. Errors: as decode.
  virtual Result<std::string> bytes_of(std::int32_t token) const = 0;
};

}  // namespace kvasir

// Text as the model reads it: tokens, and conversations in the form of its chat template. Thread-safety: immutable; any
// number of threads may call it at the same time, also while the engine runs passes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/answer.h"
#include "kvasir/grammar.h"
#include "kvasir/request.h"
#include "kvasir/status.h"

namespace kvasir {

// A prompt that is ready to run.
struct PromptTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::string>
      stops;  // strings of the chat template that end an answer; for RequestOptions::template_stops
  // For messages: makes the parser that tells thoughts, text and calls of the answer apart, which needs
  // GenerateOptions::show_special. Null: the answer is plain text.
  std::shared_ptr<const AnswerForm> answer;
  // The grammar of the answer, from RequestOptions::grammar, the tools and the choice of one; for
  // GenerateOptions::grammar. Null: the answer may be any text.
  std::shared_ptr<const Grammar> grammar;
  // For messages: the marks of thoughts, for GenerateOptions::thoughts. Null: the chat template writes no thoughts.
  std::shared_ptr<const ThoughtMarks> thoughts;
  // For messages whose answer may have thoughts: the first tokens of the prompt with which the conversation's next
  // prompt begins too, if the thoughts are left out of it. 0: not known.
  std::int64_t lasting_tokens = 0;
  std::int64_t system_tokens = 0;  // tokens of the system messages that lead `messages`; 0 for other prompts
};

class ModelText {
 public:
  virtual ~ModelText() = default;

  // Compiles a grammar for this vocabulary, within GrammarLimits. May take up to a few hundred milliseconds. Errors:
  // kInvalidArgument (what is wrong, and where), kUnsupported (a keyword that cannot be enforced, by name),
  // kResourceExhausted (a limit, or `stop` asked to stop).
  virtual Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source,
                                                         const std::stop_token& stop) const = 0;
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source) const { return compile(source, {}); }

  // Returns the tokens that Engine::submit reads for these options: of `prompt`, `messages` (with their
  // `template_arguments`) or `tokens`. A request with these tokens and stops instead of its text gives the same answer.
  // Errors: as Engine::submit gives for the text; kUnsupported for options with a session.
  virtual Result<PromptTokens> encode_prompt(const RequestOptions& options) const = 0;

  // Returns the number of tokens before the text of the first user message, for SessionOptions::protect; 0 unless the
  // chat template writes a system message there, given or its own.
  virtual Result<std::int64_t> system_tokens(std::span<const Message> messages) const = 0;

  // Returns the tokens of a text. `add_special`: adds BOS and EOS where the vocabulary asks for them. `parse_special`:
  // control tokens written out in the text become tokens instead of text. `continues`: the text continues another, so
  // that no space is put in front of it where the vocabulary would. Errors: kInvalidArgument for invalid UTF-8.
  virtual Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special, bool parse_special = false,
                                                   bool continues = false) const = 0;

  // Returns the text of tokens, with control tokens by name if `special`. The bytes need not be valid UTF-8. Errors:
  // kInvalidArgument for an id outside the vocabulary.
  virtual Result<std::string> decode(std::span<const std::int32_t> tokens, bool special) const = 0;

  // Returns the bytes of one token, possibly part of a character; the name of a control token. Errors: as decode.
  virtual Result<std::string> bytes_of(std::int32_t token) const = 0;
};

}  // namespace kvasir

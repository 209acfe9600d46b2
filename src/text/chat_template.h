// How a conversation is written for a model.
//
// A template writes the messages as segments of text in which its own control tokens count and those that somebody
// wrote into a message do not: content stays content, whatever it says.
// Thread-safety: a ChatTemplate is immutable.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatPrompt {
  std::vector<TextSegment> segments;
  std::vector<TokenValue> reserved;  // tokens that only the template may write, beside all control tokens
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  virtual std::string_view name() const = 0;

  // `open_answer`: end with the start of an assistant message, for the model to continue.
  // Errors: kInvalidArgument for a role or an order of roles that the template has no form for.
  virtual Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const = 0;

  // What ends an answer that ended without it, before the next message.
  virtual TextSegment closing() const = 0;

  // Strings that end an answer, beside the vocabulary's end tokens: they start the next message, closing() first.
  virtual std::vector<std::string> stop() const { return {}; }
};

// The template for a model. `source`: the file's tokenizer.chat_template, or empty; one that no known template
// recognises is ignored, as name() then tells: the plain template takes its place, which writes
//   markers  <|user|>...<|end|><|assistant|>       if the vocabulary has all three, <|system|> too if it has that
//   plain    User: ...\nAssistant:                 otherwise
Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary, std::string_view source);

// The token ids of a prompt. Errors: as Tokenizer::encode().
Result<std::vector<TokenValue>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                            bool add_special = true, bool continues = false);

}  // namespace kvasir

// How a conversation is written for a model.
//
// A template writes the messages as segments of text in which its own control tokens count and those that somebody
// wrote into a message do not: content stays content, whatever it says. A file brings its template as Jinja source.
// None is run: those of the known families are recognised, whole, and written natively (docs/operations.md lists them).
// Thread-safety: a ChatTemplate is immutable.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatPrompt {
  bool bos = false;  // the template writes BOS first; it is not among the segments
  std::vector<TextSegment> segments;
  std::vector<TokenId> reserved;  // tokens that only the template may write, beside all control tokens

  std::string text() const;  // of all segments
};

class ChatTemplate {
 public:
  // `stands_in`: for a template that was not recognised.
  ChatTemplate(ChatFormat format, const Vocabulary& vocabulary, bool stands_in);

  std::string_view name() const { return format_.name; }
  bool stands_in() const { return stands_in_; }

  // A whole conversation, as the model's template writes it, character by character. `open_answer`: end with the start
  // of an assistant message, for the model to continue (the template's add_generation_prompt).
  // Errors: kInvalidArgument without a message, for an unknown role, and where the template raises an exception: roles
  // out of order, or one that it has no form for.
  Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const;

  // What follows in a context that holds messages[0, first) already, each as it was written when it was the newest. So
  //   - what opens every conversation (BOS, a default system message) comes with the first message only;
  //   - a message that becomes part of the next one gives nothing yet: the system message of Llama 2 and Mistral goes
  //     into the user message that follows it;
  //   - what stands stays. render() may write it otherwise later: Qwen3 and DeepSeek leave out thoughts of earlier
  //     answers, Mistral Nemo moves the system message to the newest user message, DeepSeek moves a later one to the
  //     top;
  //   - what ends a conversation rather than a message (Phi-3's EOS) is not written.
  // A message that render() would pass over or put before what stands is an error here. Errors: as render().
  // REQUIRES: first <= messages.size().
  Result<ChatPrompt> render_next(std::span<const ChatMessage> messages, std::size_t first, bool open_answer) const;

  // What the template writes after an answer. The model writes `end` itself, as its last token; where the answer broke
  // off it is missing, and so is `before`, which few templates have.
  struct Closing {
    std::string before;
    std::string end;       // may be empty
    std::string after;     // up to the next message, such as a new line
    bool control = false;  // `end` counts as a control token
  };
  const Closing& closing() const { return closing_; }

  // The token that `end` is, where the vocabulary has it: an end token of the model, whether its file says so or not.
  std::optional<TokenId> end_token() const { return end_token_; }

  // Strings that end an answer, beside end tokens. Each starts what follows an answer: closing(), then a message.
  const std::vector<std::string>& stop() const { return format_.stops; }

 private:
  void reserve(const Vocabulary& vocabulary);

  ChatFormat format_;
  bool stands_in_;
  Closing closing_;
  std::optional<TokenId> end_token_;
};

// The template for a model. `source`: the file's tokenizer.chat_template, or empty. If it is empty or not recognised,
// the first of these that the vocabulary has the tokens for takes its place:
//   markers  <|user|>...<|end|><|assistant|>       with all three; <|system|> too if it is there
//   chatml   <|im_start|>user\n...<|im_end|>\n     with both
//   plain    User: ...\nAssistant:
// `now`: the date of templates that write today's, in local time.
Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary, std::string_view source,
                                                         std::time_t now = std::time(nullptr));

// The token ids of a prompt. `start`: nothing is before it, so that BOS is added, once, if the template or the
// vocabulary wants it; EOS never is. `continues`: as in EncodeOptions. Errors: as Tokenizer::encode().
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool start = true,
                                         bool continues = false);

}  // namespace kvasir

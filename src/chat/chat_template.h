// Writes conversations as a model's chat template does.
//
// The text comes in segments. Control tokens written out in the template's own segments become these tokens; in a
// message's content they stay plain text. A model file holds its template as Jinja source, which is never run:
// templates of known families are recognised as a whole and written natively (docs/operations/text.md lists them).
// Thread-safety: a ChatTemplate is immutable.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_format.h"
#include "kvasir/status.h"
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
  std::vector<TokenId> reserved;  // user-defined tokens that contents must not produce, like all control tokens

  std::string text() const;  // all segments, joined
};

class ChatTemplate {
 public:
  // `stands_in`: this template replaces one that was not recognised.
  ChatTemplate(ChatFormat format, const Vocabulary& vocabulary, bool stands_in);

  std::string_view name() const { return format_.name; }
  bool stands_in() const { return stands_in_; }

  // Writes a whole conversation, character by character as the model's template does. `open_answer`: end with the
  // opening of an assistant message, for the model to continue (the template's add_generation_prompt).
  // Errors: kInvalidArgument if there is no message, for an unknown role, and where the template raises an exception:
  // roles out of order, or a role that it has no form for.
  Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const;

  // Writes messages[first, ...) behind a context that already holds messages[0, first), each written when it was the
  // newest. Hence:
  //   - The start of a conversation (BOS, a default system message) comes with the first message only.
  //   - A message that the template writes as part of the next one gives no text yet: Llama 2 and Mistral write the
  //     system message inside the user message that follows it.
  //   - Text in the context never changes, although render() might write it differently later: Qwen3 and DeepSeek drop
  //     the thoughts of earlier answers, Mistral Nemo moves the system message to the newest user message, DeepSeek
  //     moves a later one to the top.
  //   - The end of a conversation (such as Phi-3's EOS) is not written, only the ends of messages.
  // A message that render() would drop, or place before text in the context, is an error. Errors: as render().
  // REQUIRES: first <= messages.size().
  Result<ChatPrompt> render_next(std::span<const ChatMessage> messages, std::size_t first, bool open_answer) const;

  // The text that the template writes after an answer: before, end, after. The model writes `end` itself, as its last
  // token. If the answer broke off, `end` is missing, and so is `before`, which few templates have.
  struct Closing {
    std::string before;
    std::string end;       // may be empty
    std::string after;     // up to the next message, such as a new line
    bool control = false;  // control tokens written out in these texts become these tokens
  };
  const Closing& closing() const { return closing_; }

  // The token of `end`, if the vocabulary has it. It ends generation whether or not the file says so.
  std::optional<TokenId> end_token() const { return end_token_; }

  // Strings that end an answer, in addition to end tokens. Each is the start of the text that follows an answer:
  // closing(), then a message.
  const std::vector<std::string>& stop() const { return format_.stops; }

 private:
  void reserve(const Vocabulary& vocabulary);

  ChatFormat format_;
  bool stands_in_;
  Closing closing_;
  std::optional<TokenId> end_token_;
};

// Makes the template of a model. `source`: the file's tokenizer.chat_template, or empty. If it is empty or not
// recognised, it is replaced by the first of these whose tokens are in the vocabulary:
//   markers  <|user|>...<|end|><|assistant|>       with all three; <|system|> too if it is there
//   chatml   <|im_start|>user\n...<|im_end|>\n     with both
//   plain    User: ...\nAssistant:
// `now`: the date for templates that write today's, in local time.
Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary, std::string_view source,
                                                         std::time_t now = std::time(nullptr));

// Returns the token ids of a prompt. `start`: the context is empty, so BOS is added, once, if the template or the
// vocabulary asks for it; EOS is never added. `continues`: as in EncodeOptions. Errors: as Tokenizer::encode().
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool start = true,
                                         bool continues = false);

}  // namespace kvasir

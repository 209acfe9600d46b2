// Writes conversations by a model's chat template, which is interpreted (src/jinja).
//
// The text comes in segments. Control tokens written out in the template's own text become tokens; in contents of
// messages and other variables, which a person or a program gave, they stay plain text.
// Thread-safety: a ChatTemplate is immutable.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/message_value.h"
#include "jinja/jinja.h"
#include "kvasir/request.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {

using ChatMessage = Message;

struct ChatPrompt {
  bool bos = false;  // the template writes BOS first; it is not among the segments
  std::vector<TextSegment> segments;
  std::vector<TokenId> reserved;  // user-defined tokens that contents must not produce, like all control tokens

  std::string text() const;  // all segments, joined
};

struct ChatTemplateOptions {
  std::string source;  // Jinja; empty: the model has no template, and a stand-in takes its place
  // true: a source that does not parse makes render() fail; false: it makes no ChatTemplate.
  bool defer_errors = false;
  std::time_t now = std::time(nullptr);  // the date for templates that write today's, in local time
  // More variables for the template: name and value. A value that is valid JSON is read as JSON; any other is a string.
  std::vector<std::pair<std::string, std::string>> arguments;
  jinja::Limits limits;                     // of one render
  std::optional<MessageForm> message_form;  // as found before; nothing: it is found by rendering probes
};

// A template's source before it is parsed.
struct ChatForm {
  std::string name;  // "jinja": the model's or a given one; "markers", "chatml" or "plain": a stand-in
  std::string source;
  bool control = true;             // control tokens written out in the template's text become these tokens
  std::vector<std::string> stops;  // strings that end an answer, beside end tokens
};

// What a template writes after an answer: before, end, after. The model writes `end` itself, as its last token. If the
// answer broke off, `end` and `before` (which few templates have) are missing.
struct ChatClosing {
  std::string before;
  std::string end;       // empty if there is none, or if a caller's variable writes a part of the closing
  std::string after;     // up to the next message, such as a line break
  bool control = false;  // control tokens written out in these texts become these tokens
};

class ChatTemplate {
 public:
  // `parsed`: `form.source` parsed; null makes render() fail with `failure`.
  ChatTemplate(ChatForm form, std::optional<jinja::Template> parsed, Status failure, jinja::Variables variables,
               const ChatTemplateOptions& options, const Vocabulary& vocabulary);

  // Returns this template with further arguments, which replace those of the same name. Errors: kInvalidArgument for an
  // argument that is a variable of every template.
  Result<std::unique_ptr<ChatTemplate>> with_arguments(std::span<const std::pair<std::string, std::string>> arguments,
                                                       const Vocabulary& vocabulary) const;

  std::string_view name() const { return form_.name; }
  // Why the template's source cannot be used; OK if it can.
  const Status& failure() const { return failure_; }
  std::string_view source() const { return form_.source; }
  // How messages are given to the template.
  const MessageForm& message_form() const { return messages_; }

  // Writes a whole conversation, character by character as the model's template does. `open_answer`: end with the
  // opening of an assistant message, for the model to continue (the template's add_generation_prompt).
  // Tools come as the argument "tools" (with_arguments). Errors: kInvalidArgument if there is no message, for an
  // unknown role, and where the template fails or raises an exception: its message, line and column. kResourceExhausted
  // if the template takes too much time or memory.
  Result<ChatPrompt> render(std::span<const ChatMessage> messages, bool open_answer) const;

  // Writes a whole conversation up to the end of the last message's content, for the model to continue that message.
  // Errors: as render(); kInvalidArgument where the template does not write that content.
  Result<ChatPrompt> render_unfinished(std::span<const ChatMessage> messages) const;

  // Writes messages[first, ...) behind a context that already holds messages[0, first), each written when it was the
  // newest. Writes what the template's loop over the messages writes from message `first` on. Hence:
  //   - The start of a conversation (BOS, a default system message) comes with the first message only.
  //   - A leading system message that the template writes as part of the next one gives no text yet, as with Llama 2
  //     and Mistral. Once it is written, the template no longer sees it.
  //   - Text in the context never changes, although render() might write it differently later: Qwen3 and DeepSeek drop
  //     the thoughts of earlier answers, Mistral Nemo moves the system message to the newest user message, DeepSeek
  //     moves a later one to the top.
  //   - What follows the loop is written with `open_answer` only, so a conversation's end (such as Phi-3's EOS) is not.
  // A system message that the template would drop, or place before text in the context, is an error. If no loop of the
  // template writes the messages in order, the text must start with that of messages[0, first); else kUnsupported: the
  // conversation cannot be continued. Other errors: as render(). REQUIRES: first <= messages.size().
  Result<ChatPrompt> render_next(std::span<const ChatMessage> messages, std::size_t first, bool open_answer) const;

  const ChatClosing& closing() const { return closing_; }

  // The token of `closing().end`, if the vocabulary has it. It ends generation even if the file does not name it.
  std::optional<TokenId> end_token() const { return end_token_; }

  // Strings that end an answer, besides end tokens. Each is the start of the text that follows an answer: closing(),
  // then a message.
  const std::vector<std::string>& stop() const { return form_.stops; }

 private:
  // The text of a conversation, and where in it the messages are.
  struct Written {
    jinja::Text text;
    // Offset of each message that the template's loop writes, then of the loop's end. Empty if no loop writes them in
    // order.
    std::vector<std::size_t> starts;
  };
  // Where a leading system message is written.
  enum class SystemPlace { kOwn, kInUser, kNone };

  std::optional<std::string> probe(const std::vector<jinja::Value>& messages) const;
  Result<Written> write(std::span<const ChatMessage> messages, bool open_answer) const;
  Result<jinja::Text> write_from(std::span<const ChatMessage> messages, std::size_t first, bool open_answer) const;
  Status check_systems(std::span<const ChatMessage> messages, std::size_t first) const;
  static std::vector<ChatMessage> messages_behind(std::span<const ChatMessage> messages);
  ChatPrompt prompt_of(const jinja::Text& text, bool starts) const;
  SystemPlace find_system_place() const;
  std::optional<jinja::Text> text_after_answer() const;
  void reserve(const Vocabulary& vocabulary);

  ChatForm form_;
  MessageForm messages_;
  std::vector<std::string> given_stops_;  // of `form`: without those the probes found
  std::optional<jinja::Template> parsed_;
  Status failure_;
  jinja::Variables variables_;  // all but the messages and add_generation_prompt
  std::time_t now_;
  jinja::Limits limits_;
  std::string bos_text_;
  SystemPlace system_ = SystemPlace::kOwn;
  std::vector<TokenId> reserved_;
  ChatClosing closing_;
  std::optional<TokenId> end_token_;
};

// Makes the template of a model. Without a source it is the first of these whose tokens are in the vocabulary:
//   markers  <|user|>...<|end|><|assistant|>       with all three; <|system|> too if it is there
//   chatml   <|im_start|>user\n...<|im_end|>\n     with both
//   plain    User: ...\nAssistant:
// Errors: kInvalidArgument for a source that has no tag or does not parse, naming line and column, unless
// `options.defer_errors`; for an argument that is a variable of every template.
Result<std::unique_ptr<ChatTemplate>> make_chat_template(const Vocabulary& vocabulary,
                                                         const ChatTemplateOptions& options);

// Returns the token ids of a prompt. `start`: the context is empty, so BOS is added, once, if the template or the
// vocabulary asks for it; EOS never is. `continues`: as in EncodeOptions. Errors: as Tokenizer::encode().
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatPrompt& prompt, bool start = true,
                                         bool continues = false);

}  // namespace kvasir

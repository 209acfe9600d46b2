// The messages of one conversation, and how the context they stand in ends: what a new message needs in front of it.
//
// The transcript does not run tokens. A message goes through two calls: render() gives its token ids and changes
// nothing, add() records it once the caller knows how many of them entered the context. A message that was refused is
// never added, so there is nothing to roll back. Between messages the caller reports what else enters the context:
// plain text, and generations.
// Thread-safety: none; copies (forks) are independent. Refers to tokenizer and template, which must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "kvasir/finish_reason.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// How the context ends, and so what a new message needs in front of it.
struct ChatEnding {
  enum class Kind {
    kClosed,    // no message is open: nothing is needed
    kAwaited,   // the context ends with the opening of an answer: a message of the assistant fills it
    kOpen,      // a message is unfinished: the template's closing text is needed
    kEndToken,  // the model ended its text with `token`, which is not in the context yet and is needed
    kStop,      // the context ends with `stop`, a stop string of the template: the first part of what follows an answer
  };
  Kind kind = Kind::kClosed;
  TokenId token = kNoToken;  // of kEndToken
  std::string stop;          // of kStop
};

// A ChatTranscript as plain data.
struct ChatState {
  std::vector<ChatMessage> messages;
  bool started = false;  // some message has entered the context
  ChatEnding ending;
};

// The context that messages are written behind.
struct ContextEnd {
  std::int64_t tokens = 0;          // in the context
  std::span<const TokenId> newest;  // the newest of them, oldest first: more than the template's closing text takes
};

class ChatTranscript {
 public:
  ChatTranscript(const Tokenizer& tokenizer, const ChatTemplate& chat) : tokenizer_(&tokenizer), chat_(&chat) {}

  // Continues where state() was taken. Errors: kDataLoss for a state that does not fit the tokenizer and the template.
  static Result<ChatTranscript> from_state(const Tokenizer& tokenizer, const ChatTemplate& chat, ChatState state);
  ChatState state() const { return {messages_, started_, ending_}; }

  // A message that is ready to enter the context.
  struct Rendered {
    std::vector<ChatMessage> messages;  // the message; before it an empty answer, if the last question has no answer
    std::vector<TokenId> tokens;        // to run: what closes the message before, then this one
    bool waits = false;                 // the template writes it as part of the next message: there is nothing to run
    bool opens_answer = false;          // the tokens end with the opening of an answer
    std::size_t position = 0;           // number of messages before it
  };

  // Writes a message behind the context. Errors: kInvalidArgument (a role or an order of roles that the template has no
  // form for, invalid UTF-8).
  Result<Rendered> render(std::string_view role, std::string_view content, const ContextEnd& context) const;

  // Records a rendered message of which `read` tokens entered the context. With 0, unless it waits, the message was
  // refused and is not recorded; one that entered in part stays open. REQUIRES: 0 <= read <= tokens.size(), and the
  // transcript is as it was when the message was rendered.
  void add(Rendered message, std::int64_t read);

  // Records that plain text entered the context. It continues an open message.
  void add_text();

  // Marks the newest message as open: a generation starts to continue the context.
  void begin_answer();

  // How a generation ended.
  struct Answer {
    std::string_view text;
    FinishReason finish_reason = FinishReason::kLength;
    std::optional<TokenId> end_token;  // of kEnd
    bool mid_character = false;        // its tokens end inside a UTF-8 character
  };

  // Records the end of a generation: its text continues the assistant's message, or is a new one. `newest`: of the
  // context, see ContextEnd. REQUIRES: begin_answer() was called before the generation; end_token with kEnd.
  void end_answer(const Answer& answer, std::span<const TokenId> newest);

  // The template's strings that end an answer. None as long as no message has entered the context.
  std::span<const std::string> stops() const;

  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  Result<ChatPrompt> render_newest(std::span<const ChatMessage> messages, bool* fills) const;
  Result<std::vector<TokenId>> encode(ChatPrompt message, bool fills, const ContextEnd& context) const;
  Result<std::string> missing_closing(std::span<const TokenId> newest) const;
  Result<bool> ends_with_closing(std::string_view text, std::span<const TokenId> newest) const;
  ChatEnding ending_of(const Answer& answer, std::span<const TokenId> newest) const;
  bool ends_with(std::string_view text, std::span<const TokenId> newest) const;
  bool ends_in_text(std::span<const TokenId> newest) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::vector<ChatMessage> messages_;  // of all roles, the model's answers included
  bool started_ = false;               // some message has entered the context
  ChatEnding ending_;
};

}  // namespace kvasir

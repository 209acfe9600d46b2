// Records the messages of one conversation and how its context ends.
//
// The transcript does not run tokens. A message takes two calls: render() returns its token ids and changes nothing;
// add() records it once the caller knows how many of them entered the context. A refused message is never added, so
// nothing has to be rolled back. The caller also reports plain text and generations that enter the context.
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

// How the context ends, which determines the text a new message needs in front of it.
struct ChatEnding {
  enum class Kind {
    kClosed,    // no message is open: nothing is needed
    kAwaited,   // the context ends with the opening of an answer, which a message of the assistant fills
    kOpen,      // a message is unfinished: the template's closing text is needed
    kEndToken,  // the model ended its text with `token`, which is not in the context yet and is needed
    kStop,      // the context ends with `stop`, a stop string of the template: the start of what follows an answer
  };
  Kind kind = Kind::kClosed;
  TokenId token = kNoToken;  // of kEndToken
  std::string stop;          // of kStop
};

// A ChatTranscript as plain data.
struct ChatState {
  std::vector<ChatMessage> messages;
  bool started = false;  // a message has entered the context
  ChatEnding ending;
};

// The end of the context behind which a message is written.
struct ContextEnd {
  std::int64_t tokens = 0;          // in the whole context
  std::span<const TokenId> newest;  // the newest, oldest first; more of them than the template's closing text has
};

class ChatTranscript {
 public:
  ChatTranscript(const Tokenizer& tokenizer, const ChatTemplate& chat) : tokenizer_(&tokenizer), chat_(&chat) {}

  // Continues where state() was taken. Errors: kDataLoss for a state that does not fit the tokenizer and the template.
  static Result<ChatTranscript> from_state(const Tokenizer& tokenizer, const ChatTemplate& chat, ChatState state);
  ChatState state() const { return {messages_, started_, ending_}; }

  // A message that is ready to enter the context.
  struct Rendered {
    std::vector<ChatMessage> messages;  // the messages; each question without an answer is followed by an empty one
    std::vector<TokenId> tokens;        // to run: the closing of the previous message, then the messages' own
    bool waits = false;                 // the template writes it as part of the next message: nothing to run yet
    bool opens_answer = false;          // the tokens end with the opening of an answer
    std::size_t position = 0;           // number of messages before
  };

  // Writes a message behind the context. Errors: kInvalidArgument for a role or an order of roles that the template
  // does not support, and for invalid UTF-8, also in a message that waits.
  Result<Rendered> render(std::string_view role, std::string_view content, const ContextEnd& context) const;
  // As above for several messages, in one run of the template. REQUIRES: not empty.
  Result<Rendered> render(std::span<const ChatMessage> messages, const ContextEnd& context) const;

  // Records a rendered message of which `read` tokens entered the context. A message with 0 tokens read was refused and
  // is not recorded, unless it waits; one read in part stays open. REQUIRES: 0 <= read <= tokens.size(); the transcript
  // has not changed since render().
  void add(Rendered message, std::int64_t read);

  // Records that plain text entered the context; it continues an open message.
  void add_text();

  // Marks the newest message as open: a generation starts to continue the context.
  void begin_answer();

  // The end of a generation.
  struct Answer {
    std::string_view text;
    FinishReason finish_reason = FinishReason::kLength;
    std::optional<TokenId> end_token;  // of kEnd
    bool mid_character = false;        // the answer's tokens end inside a UTF-8 character
  };

  // Records the end of a generation. Its text continues the assistant's message, or starts a new one. `newest`: as in
  // ContextEnd. REQUIRES: begin_answer() was called before the generation; with kEnd, end_token is set.
  void end_answer(const Answer& answer, std::span<const TokenId> newest);

  // Returns the template's stop strings; none until a message has entered the context.
  std::span<const std::string> stops() const;

  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  Result<ChatPrompt> render_newest(std::span<const ChatMessage> messages, std::size_t first, bool* fills) const;
  Result<std::vector<TokenId>> encode(ChatPrompt message, bool fills, const ContextEnd& context) const;
  Result<std::string> missing_closing(std::span<const TokenId> newest) const;
  Result<bool> ends_with_closing(std::string_view text, std::span<const TokenId> newest) const;
  ChatEnding ending_of(const Answer& answer, std::span<const TokenId> newest) const;
  bool ends_with(std::string_view text, std::span<const TokenId> newest) const;
  bool ends_in_text(std::span<const TokenId> newest) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::vector<ChatMessage> messages_;  // of all roles, the model's answers included
  bool started_ = false;               // a message has entered the context
  ChatEnding ending_;
};

}  // namespace kvasir

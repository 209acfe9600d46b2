// A model's chat template as data. ChatTemplate writes conversations by it.
// Thread-safety: plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir {

// The texts around a message of one role.
struct ChatForm {
  std::string before;
  std::string after;
  bool strip = false;  // the content is written without white space at its ends
};

// Where a system message at the start of a conversation is written.
enum class SystemPlace {
  kOwnMessage,  // as a message of its own
  kFirstUser,   // inside the user message that follows
  kLastUser,    // inside the newest user message, if that is the newest message
  kTop,         // before all messages; if there are several system messages, the newest is written
  kDropped,     // nowhere
  kRefused,     // the template raises an exception
};

// What the template does with later system messages.
enum class LateSystem { kOwnMessage, kDropped, kRefused };

// What the template does with the thoughts in an assistant's message: <think>...</think>.
enum class Thoughts {
  kKept,
  kDropped,            // everything before the last </think> is dropped
  kDroppedUnlessLast,  // as kDropped, except in the newest message
  kOfThisTurn,         // kept after the user's last query; there, a message without thoughts gets empty ones
};

// A system message in which "/think" or "/no_think" switches thinking on or off. The switch itself is not written.
struct ThinkSwitch {
  std::string before;         // before the name of the mode
  std::string between;        // between the name and the instructions
  std::string after;          // after the instructions, if there are any
  std::string thinking;       // written if there are no instructions, while thinking
  std::string not_thinking;   // written if there are no instructions, while not thinking
  std::string end;            // ends the system message
  std::string empty_thought;  // starts each answer while not thinking
};

struct ChatFormat {
  std::string name;
  bool control = true;     // control tokens written out in the form become these tokens
  bool bos = false;        // BOS starts the conversation
  bool bos_again = false;  // BOS starts each user message after the first, too
  std::string bos_text;    // the piece of BOS
  std::string eos_text;    // the piece of EOS

  ChatForm system;       // of a system message that starts the conversation
  ChatForm late_system;  // of later system messages
  ChatForm user;
  ChatForm assistant;
  SystemPlace system_place = SystemPlace::kOwnMessage;
  LateSystem late = LateSystem::kOwnMessage;
  bool skip_empty_system = false;
  std::optional<std::string> default_system;  // content of a system message if the conversation starts without one
  std::string fold_before;                    // before a system message written inside a user message
  std::string fold_after;                     // after it
  bool alternate = false;                     // user and assistant must take turns, user first
  Thoughts thoughts = Thoughts::kKept;
  std::optional<ThinkSwitch> think_switch;

  std::string open;                // opens an answer
  std::string final;               // ends a conversation, unless an answer is opened
  std::string end;                 // the part of assistant.after that the model writes itself
  std::vector<std::string> stops;  // strings that end an answer, beside end tokens
  std::vector<TokenId> reserved;   // user-defined tokens that contents must not produce
};

}  // namespace kvasir

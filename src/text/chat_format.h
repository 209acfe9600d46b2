// The form that a model's chat template gives to a conversation, as data: what ChatTemplate writes by.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir {

// How the messages of a role are written.
struct ChatForm {
  std::string before;
  std::string after;
  bool strip = false;  // without whitespace at either end
};

// Where the system message goes that starts a conversation.
enum class SystemPlace {
  kOwnMessage,  // it is written like any message
  kFirstUser,   // inside the user message that follows
  kLastUser,    // inside the newest user message, if that is the newest message
  kTop,         // the newest system message comes before all others, wherever it was
  kDropped,     // nowhere
  kRefused,
};

// And what becomes of later ones.
enum class LateSystem { kOwnMessage, kDropped, kRefused };

// What becomes of the thoughts in an assistant's message: <think>...</think>.
enum class Thoughts {
  kKept,
  kDropped,            // what stands before the last </think>
  kDroppedUnlessLast,  // of all messages but the newest
  kOfThisTurn,         // those since the user's last query are kept, and written where there are none
};

// A system message that says whether the model shall think: "/think" or "/no_think" in it, which is not shown.
struct ThinkSwitch {
  std::string before;    // the mode's name
  std::string between;   // the name and the instructions
  std::string after;     // instructions, where there are any
  std::string thinking;  // instead of none, with what ends them
  std::string not_thinking;
  std::string end;            // of the system message
  std::string empty_thought;  // starts each answer while not thinking
};

struct ChatFormat {
  std::string name;
  bool control = true;     // control tokens written out in the form count
  bool bos = false;        // BOS starts the conversation
  bool bos_again = false;  // and each user message after the first
  std::string bos_text;    // the pieces of BOS and EOS
  std::string eos_text;

  ChatForm system;  // the first
  ChatForm late_system;
  ChatForm user;
  ChatForm assistant;
  SystemPlace system_place = SystemPlace::kOwnMessage;
  LateSystem late = LateSystem::kOwnMessage;
  bool skip_empty_system = false;
  std::optional<std::string> default_system;  // of a conversation that starts without a system message
  std::string fold_before;                    // around a system message inside a user's
  std::string fold_after;
  bool alternate = false;  // user and assistant must take turns, user first
  Thoughts thoughts = Thoughts::kKept;
  std::optional<ThinkSwitch> think_switch;

  std::string open;   // starts an answer
  std::string final;  // ends a conversation that opens none
  std::string end;    // the part of assistant.after that the model writes itself
  std::vector<std::string> stops;
  std::vector<TokenId> reserved;
};

}  // namespace kvasir

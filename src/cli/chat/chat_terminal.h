// The mode of the terminal during a chat.
//
// Input is taken byte by byte, without echo, and never cut; the terminal marks pastes (bracketed paste). So text typed
// or pasted while an answer is printed neither disturbs it nor is lost.
#pragma once

namespace kvasir::cli {

// Returns whether standard input and output are terminals that can move the cursor (TERM is set and not "dumb").
bool is_editable_terminal();

// Holds the mode while it lives. Also restores the terminal when a signal stops (Ctrl-Z) or ends the process, except
// for SIGKILL. REQUIRES: is_editable_terminal(); one object at a time.
class ChatTerminal {
 public:
  ChatTerminal();
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;
  ~ChatTerminal();

  // Sets the mode again after other code, such as libedit, has set another.
  void apply();

  // Return whether, since the last call, the process was stopped and continued, or the window was resized.
  bool take_continued();
  bool take_resized();
};

}  // namespace kvasir::cli

// Reads what a person types at a prompt.
//
// On a terminal that can move the cursor: a line editor (libedit) with history, in which any paste is one piece of text
// and a line may have any length. On others: plain lines from the system's terminal driver.
//
// Thread-safety: none; one reader at a time.
#pragma once

#include <memory>
#include <string>

namespace kvasir::cli {

struct Typed {
  enum class Kind {
    kText,          // a message, without the line end
    kEnd,           // Ctrl-D, or the terminal is gone
    kInterrupted,   // a signal that interrupted() reports; `text` is what was typed so far
    kCut,           // the line is as long as the terminal driver's limit, so it may have been cut
    kDamagedPaste,  // the placeholder of a paste was edited
  };
  Kind kind = Kind::kEnd;
  std::string text;  // several lines after a continuation or a paste; may be invalid UTF-8
};

class LineReader {
 public:
  virtual ~LineReader() = default;

  // Shows `prompt` and reads one message. A line that ends with one backslash continues in the next; the backslash
  // becomes a line end.
  virtual Typed read(const std::string& prompt) = 0;

  // Returns whether lines can be edited: Alt-Enter, arrow keys and pastes of several lines work.
  virtual bool edits() const = 0;
};

// Opens the reader that suits the terminal. REQUIRES: standard input is a terminal; catch_interrupts() was called.
std::unique_ptr<LineReader> open_line_reader();

}  // namespace kvasir::cli

// Reads what a person types at a prompt.
//
// On a terminal that can move the cursor: a line editor (libedit) with history, in which a paste is one piece of text
// whatever it holds, and a line may have any length. On others: plain lines, as the system's terminal driver gives
// them.
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
    kInterrupted,   // a signal that interrupted() reports; `text` is what had been typed
    kCut,           // the system's terminal driver may have cut the line: it has as many bytes as that holds
    kDamagedPaste,  // the placeholder that stands for a paste was edited
  };
  Kind kind = Kind::kEnd;
  std::string text;  // several lines where a line was continued or lines were pasted; may be invalid UTF-8
};

class LineReader {
 public:
  virtual ~LineReader() = default;

  // Shows `prompt` and reads one message. A line that ends with one backslash goes on in the next, in place of which
  // the message has a line end.
  virtual Typed read(const std::string& prompt) = 0;

  // Whether lines can be edited: whether Alt-Enter, arrow keys and pasting of several lines work.
  virtual bool edits() const = 0;
};

// Opens the reader that fits the terminal. REQUIRES: standard input is a terminal; catch_interrupts() was called.
std::unique_ptr<LineReader> open_line_reader();

}  // namespace kvasir::cli

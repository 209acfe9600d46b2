#include "cli/chat/line_reader.h"

#include <climits>
#include <iostream>

#include "cli/chat/chat_terminal.h"
#include "cli/chat/line_editor.h"
#include "cli/command.h"
#include "cli/signals.h"

namespace kvasir::cli {
namespace {

// Bytes of a line that the terminal driver keeps (N_TTY_BUF_SIZE less one for the line end); it drops the rest.
constexpr std::size_t kMostOfALine = 4095;

class PlainReader final : public LineReader {
 public:
  Typed read(const std::string& prompt) override {
    Typed typed{Typed::Kind::kText, ""};
    for (const char* shown = prompt.c_str();; shown = kContinuation) {
      note("{}", shown);
      std::string line;
      if (!wait_for_input()) {
        note("\n");
        return {Typed::Kind::kInterrupted, ""};
      }
      if (!std::getline(std::cin, line)) return {Typed::Kind::kEnd, ""};
      if (line.size() >= kMostOfALine) typed.kind = Typed::Kind::kCut;
      typed.text += line;
      if (!continues(typed.text)) return typed;
      typed.text.back() = '\n';
    }
  }
  bool edits() const override { return false; }
};

}  // namespace

bool continues(std::string_view text) {
  return text.ends_with('\\') && !text.ends_with("\\\\");
}

std::unique_ptr<LineReader> open_line_reader() {
  if (is_editable_terminal())
    if (std::unique_ptr<LineReader> editor = open_line_editor()) return editor;
  return std::make_unique<PlainReader>();
}

}  // namespace kvasir::cli

#include "cli/chat/line_editor.h"

#include <fmt/core.h>
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "cli/chat/chat_terminal.h"
#include "cli/chat/history_file.h"
#include "cli/command.h"
#include "cli/signals.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

// Limits beyond which a paste is shown as a placeholder.
constexpr std::ptrdiff_t kMostLinesShown = 8;
constexpr std::size_t kMostCharactersShown = 400;

// A byte that is not UTF-8 is stored in the editor's line as this code point plus the byte: an unpaired surrogate,
// which valid UTF-8 never has.
constexpr wchar_t kInvalidByte = 0xdc00;

void append_utf8(std::string& out, wchar_t character) {
  if (character >= kInvalidByte + 0x80 && character < kInvalidByte + 0x100) {
    out += static_cast<char>(character - kInvalidByte);
    return;
  }
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::string to_utf8(std::wstring_view text) {
  std::string out;
  for (const wchar_t character : text) append_utf8(out, character);
  return out;
}

// The first character of a text, as stored in the editor; 0 characters long if the text ends inside it.
struct Decoded {
  wchar_t character = 0;
  std::size_t bytes = 0;
};
Decoded first_character(std::string_view text) {
  const Utf8Unit unit = first_utf8_unit(text);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (unit.kind == Utf8Unit::Kind::kIncomplete) return {};
  if (unit.kind == Utf8Unit::Kind::kInvalid) return {static_cast<wchar_t>(kInvalidByte + byte(0)), 1};
  if (unit.length == 1) return {static_cast<wchar_t>(byte(0)), 1};
  auto code = static_cast<std::uint32_t>(byte(0) & (0x7f >> unit.length));
  for (std::size_t i = 1; i < unit.length; ++i) code = code << 6 | (byte(i) & 0x3f);
  return {static_cast<wchar_t>(code), unit.length};
}

std::wstring to_wide(std::string_view text) {
  std::wstring out;
  while (!text.empty()) {
    Decoded next = first_character(text);
    if (next.bytes == 0) next = {static_cast<wchar_t>(kInvalidByte + static_cast<unsigned char>(text[0])), 1};
    out += next.character;
    text.remove_prefix(next.bytes);
  }
  return out;
}

// libedit encodes its output by the locale. If that is not UTF-8, uses Debian's C.UTF-8.
void choose_utf8_locale() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0)
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

class LineEditor final : public LineReader {
 public:
  LineEditor() = default;
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor() override {
    if (history_ != nullptr) ::history_wend(history_);
    if (edit_ != nullptr) ::el_end(edit_);
  }

  // Returns whether libedit could be started.
  bool start() {
    choose_utf8_locale();
    edit_ = ::el_init("kvasir", stdin, stdout, stderr);
    history_ = ::history_winit();
    if (edit_ == nullptr || history_ == nullptr) return false;
    ::el_wset(edit_, EL_CLIENTDATA, this);
    ::el_wset(edit_, EL_PROMPT, &LineEditor::show_prompt);
    ::el_wset(edit_, EL_GETCFN, &LineEditor::get_character);
    ::el_wset(edit_, EL_EDITOR, L"emacs");
    HistEventW event;
    ::history_w(history_, &event, H_SETSIZE, kMostHistory);
    ::history_w(history_, &event, H_SETUNIQUE, 1);
    ::el_wset(edit_, EL_HIST, history_w, history_);
    for (const std::string& entry : file_.load()) ::history_w(history_, &event, H_ENTER, to_wide(entry).c_str());
    ::el_source(edit_, nullptr);  // ~/.editrc
    bind_keys();
    return true;
  }

  Typed read(const std::string& prompt) override {
    Typed typed;
    for (Paste& paste : pastes_) paste.in_message = false;
    std::string remembered;  // as typed, with placeholders for pastes
    for (prompt_ = to_wide(prompt);; prompt_ = to_wide(kContinuation)) {
      const std::optional<std::wstring> line = read_line();
      if (!line) {
        typed.kind = ended_ ? Typed::Kind::kEnd : Typed::Kind::kInterrupted;
        typed.text = remembered + unfinished_;
        return typed;
      }
      remembered += to_utf8(*line);
      if (!continues(remembered)) break;
      remembered.back() = '\n';
    }
    typed.kind = has_damaged_paste(remembered) ? Typed::Kind::kDamagedPaste : Typed::Kind::kText;
    typed.text = with_pastes(remembered);
    remember(remembered, typed.text);
    return typed;
  }

  bool edits() const override { return true; }

 private:
  static LineEditor& of(EditLine* edit) {
    void* self = nullptr;
    ::el_wget(edit, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }
  static wchar_t* show_prompt(EditLine* edit) { return of(edit).prompt_.data(); }
  static int get_character(EditLine* edit, wchar_t* character) { return of(edit).next(*character); }
  static unsigned char take_paste(EditLine* edit, wint_t) { return of(edit).paste(); }
  static unsigned char erase(EditLine* edit, wint_t) { return of(edit).erase_back(); }
  static unsigned char insert_line_end(EditLine* edit, wint_t) {
    return ::el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
  }

  void bind_keys() {
    ::el_wset(edit_, EL_ADDFN, L"kvasir-paste", L"Take a bracketed paste", &LineEditor::take_paste);
    ::el_wset(edit_, EL_ADDFN, L"kvasir-line-end", L"Insert a line end", &LineEditor::insert_line_end);
    ::el_wset(edit_, EL_ADDFN, L"kvasir-erase", L"Erase a character or a paste", &LineEditor::erase);
    static constexpr std::pair<const wchar_t*, const wchar_t*> kKeys[] = {
        {L"^?", L"kvasir-erase"},       {L"^H", L"kvasir-erase"},       {L"\\e[200~", L"kvasir-paste"},
        {L"\\e^J", L"kvasir-line-end"},  // Alt-Enter
        {L"\\e^M", L"kvasir-line-end"}, {L"^I", L"ed-insert"},          {L"^R", L"em-inc-search-prev"},
        {L"\\e[H", L"ed-move-to-beg"},  // Home, End, Delete, and Ctrl with the arrow keys
        {L"\\e[1~", L"ed-move-to-beg"}, {L"\\eOH", L"ed-move-to-beg"},  {L"\\e[F", L"ed-move-to-end"},
        {L"\\e[4~", L"ed-move-to-end"}, {L"\\eOF", L"ed-move-to-end"},  {L"\\e[3~", L"ed-delete-next-char"},
        {L"\\e[1;5D", L"ed-prev-word"}, {L"\\e[1;5C", L"em-next-word"},
    };
    for (const auto& [key, function] : kKeys) ::el_wset(edit_, EL_BIND, key, function, nullptr);
  }

  // Returns a line without its end; nullopt at the end of input and on an interrupt.
  std::optional<std::wstring> read_line() {
    ended_ = false;
    unfinished_.clear();
    broken_ = false;
    int count = 0;
    ::el_wset(edit_, EL_PREP_TERM, 1);  // before the prompt: libedit alone would echo keys until it reads the first
    const wchar_t* line = ::el_wgets(edit_, &count);
    if (line == nullptr || count <= 0) {
      ended_ = !broken_ || ended_;
      terminal_.apply();
      if (!ended_) {
        const LineInfoW* info = ::el_wline(edit_);
        unfinished_ = to_utf8({info->buffer, static_cast<std::size_t>(info->lastchar - info->buffer)});
        [[maybe_unused]] const Status written = print("^C\n");
      }
      return std::nullopt;
    }
    terminal_.apply();
    std::wstring_view text(line, static_cast<std::size_t>(count));
    if (text.ends_with(L'\n')) text.remove_suffix(1);
    return std::wstring(text);
  }

  // Reads one character for libedit. Returns 1; 0 at the end of input; -1 on an interrupt.
  int next(wchar_t& character) {
    for (;;) {
      const std::string_view left = std::string_view(input_).substr(taken_);
      if (const Decoded first = left.empty() ? Decoded() : first_character(left); first.bytes > 0) {
        taken_ += first.bytes;
        character = first.character;
        return 1;
      }
      input_.erase(0, taken_);
      taken_ = 0;
      note_pastes_in_line();
      if (!wait_for_input([this] { redraw_if_due(); })) {
        input_.clear();
        broken_ = true;
        errno = EINTR;
        return -1;
      }
      char buffer[1 << 16];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) {
        ended_ = true;
        return 0;
      }
      input_.append(buffer, static_cast<std::size_t>(n));
    }
  }

  void redraw_if_due() {
    const bool resized = terminal_.take_resized();
    if (resized) ::el_resize(edit_);
    if (terminal_.take_continued() || resized) ::el_wset(edit_, EL_REFRESH);
  }

  // Takes a paste up to its end mark, of any length. Inserts a short one; holds a long one and inserts a placeholder.
  unsigned char paste() {
    static constexpr std::wstring_view kEnd = L"\x1b[201~";
    std::wstring text;
    while (!text.ends_with(kEnd)) {
      wchar_t character = 0;
      if (next(character) != 1) return CC_ERROR;
      text += character;
    }
    text.resize(text.size() - kEnd.size());
    std::wstring lines;  // with line ends as a file has them
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == L'\0' || (text[i] == L'\r' && i + 1 < text.size() && text[i + 1] == L'\n')) continue;
      lines += text[i] == L'\r' ? L'\n' : text[i];
    }
    if (lines.size() > kMostCharactersShown || std::ranges::count(lines, L'\n') >= kMostLinesShown) {
      const auto ends = std::ranges::count(lines, L'\n');
      Paste held{.beginning = fmt::format("[paste {}:", ++last_paste_), .placeholder = "", .text = to_utf8(lines)};
      held.placeholder =
          fmt::format("{} {}, {}]", held.beginning, counted(static_cast<std::int64_t>(lines.size()), "character"),
                      counted(static_cast<std::int64_t>(ends + (lines.ends_with(L'\n') ? 0 : 1)), "line"));
      held.in_message = true;
      pastes_.push_back(std::move(held));
      lines = to_wide(pastes_.back().placeholder);
    }
    return ::el_winsertstr(edit_, lines.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // Erases the character before the cursor, or the whole paste whose placeholder ends there.
  unsigned char erase_back() {
    const LineInfoW* info = ::el_wline(edit_);
    const std::wstring_view before(info->buffer, static_cast<std::size_t>(info->cursor - info->buffer));
    if (before.empty()) return CC_ERROR;
    std::size_t count = 1;
    for (const Paste& paste : pastes_)
      if (const std::wstring mark = to_wide(paste.placeholder); before.ends_with(mark)) count = mark.size();
    ::el_deletestr(edit_, static_cast<int>(count));
    return CC_REFRESH;
  }

  // Marks the pastes whose placeholders are in the line, also in one recalled from history.
  void note_pastes_in_line() {
    if (pastes_.empty()) return;
    const LineInfoW* info = ::el_wline(edit_);
    const std::string line = to_utf8({info->buffer, static_cast<std::size_t>(info->lastchar - info->buffer)});
    for (Paste& paste : pastes_)
      paste.in_message = paste.in_message || line.find(paste.placeholder) != std::string::npos;
  }

  // Returns whether a placeholder of this message was edited, so that it no longer stands for its paste.
  bool has_damaged_paste(std::string text) const {
    for (const Paste& paste : pastes_) {
      if (!paste.in_message) continue;
      const std::string& mark = paste.placeholder;
      for (std::size_t at; (at = text.find(mark)) != std::string::npos;) text.erase(at, mark.size());
      if (text.find(paste.beginning) != std::string::npos) return true;
    }
    return false;
  }

  // Returns the text with each placeholder replaced by its paste.
  std::string with_pastes(const std::string& text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
      const auto held = std::ranges::find_if(pastes_, [&](const Paste& paste) {
        return text.compare(i, paste.placeholder.size(), paste.placeholder) == 0;
      });
      if (held != pastes_.end()) {
        out += held->text;
        i += held->placeholder.size();
      } else {
        out += text[i++];
      }
    }
    return out;
  }

  void remember(const std::string& typed, const std::string& text) {
    if (typed.find_first_not_of(" \t\n") == std::string::npos) return;
    HistEventW event;
    ::history_w(history_, &event, H_ENTER, to_wide(typed).c_str());
    file_.append(text);
    forget_pastes();
  }

  // Drops the pastes that no history entry names: nothing can recall them.
  void forget_pastes() {
    if (pastes_.empty()) return;
    std::vector<std::string> entries;
    HistEventW event;
    for (int found = ::history_w(history_, &event, H_FIRST); found >= 0; found = ::history_w(history_, &event, H_NEXT))
      entries.push_back(to_utf8(event.str));
    std::erase_if(pastes_, [&](const Paste& paste) {
      return std::ranges::none_of(
          entries, [&](const std::string& entry) { return entry.find(paste.placeholder) != std::string::npos; });
    });
  }

  struct Paste {
    std::string beginning;  // the placeholder's start, "[paste 1:"
    std::string placeholder;
    std::string text;
    bool in_message = false;  // in the message being typed
  };

  ChatTerminal terminal_;
  EditLine* edit_ = nullptr;
  HistoryW* history_ = nullptr;
  HistoryFile file_ = HistoryFile::of_user();
  std::wstring prompt_;
  std::string input_;      // bytes read
  std::size_t taken_ = 0;  // bytes of input_ that are decoded
  std::string unfinished_;
  bool broken_ = false;        // by an interrupt
  bool ended_ = false;         // end of input
  std::vector<Paste> pastes_;  // in the message being typed, or named by history
  int last_paste_ = 0;         // number of the newest paste
};

}  // namespace

std::unique_ptr<LineReader> open_line_editor() {
  auto editor = std::make_unique<LineEditor>();
  if (!editor->start()) return nullptr;
  return editor;
}

}  // namespace kvasir::cli

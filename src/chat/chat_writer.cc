#include "chat/chat_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "chat/python_strip.h"

namespace kvasir {
namespace {

constexpr std::string_view kThought = "<think>";
constexpr std::string_view kThoughtEnd = "</think>";

std::string_view after_thoughts(std::string_view content) {
  const std::size_t end = content.rfind(kThoughtEnd);
  return end == std::string_view::npos ? content : content.substr(end + kThoughtEnd.size());
}

// Returns the thoughts in an answer, or "" if there are none.
std::string_view thoughts_of(std::string_view content) {
  const std::size_t end = content.find(kThoughtEnd);
  if (end == std::string_view::npos) return {};
  std::string_view thoughts = strip_right(content.substr(0, end), '\n');
  if (const std::size_t begin = thoughts.rfind(kThought); begin != std::string_view::npos)
    thoughts.remove_prefix(begin + kThought.size());
  return strip(thoughts, '\n');
}

std::string without(std::string_view text, std::string_view part) {
  std::string rest;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part)) {
    rest += text.substr(0, at);
    text.remove_prefix(at + part.size());
  }
  return rest.append(text);
}

class Writer {
 public:
  Writer(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatPart& part)
      : format_(format), messages_(messages), part_(part) {
    prompt_.reserved = format.reserved;
  }

  Result<ChatPrompt> write() {
    if (messages_.empty()) return invalid_argument("there is no message; give one at least");
    for (const ChatMessage& message : messages_.subspan(part_.first))
      if (message.role != "system" && message.role != "user" && message.role != "assistant")
        return invalid_argument("the role \"{}\" is not known; use system, user or assistant", message.role);
    std::size_t next = part_.first;
    if (next == 0) {
      KVASIR_RETURN_IF_ERROR(write_start());
      if (leads()) next = 1;
    }
    prompt_.bos = format_.bos && is_untouched();
    for (; next < messages_.size(); ++next) KVASIR_RETURN_IF_ERROR(write_message(next));
    if (part_.open_answer) {
      mark(format_.open);
      if (!thinks()) mark(format_.think_switch->empty_thought);
    } else if (part_.whole) {
      mark(format_.final);
    }
    return std::move(prompt_);
  }

 private:
  bool leads() const { return messages_[0].role == "system"; }
  bool folds() const {
    return format_.system_place == SystemPlace::kFirstUser || format_.system_place == SystemPlace::kLastUser;
  }
  // Returns true if the messages before `first` have produced no text yet.
  bool is_untouched() const {
    if (part_.first == 0) return true;
    const bool bare = format_.skip_empty_system || format_.system_place == SystemPlace::kTop;
    const bool unwritten = folds() || (bare && messages_[0].content.empty());
    return part_.first == 1 && leads() && unwritten;
  }
  bool thinks() const {
    if (!format_.think_switch || !leads()) return true;
    return messages_[0].content.find("/no_think") == std::string::npos;
  }

  void add(std::string_view text, bool special) {
    if (text.empty()) return;
    auto& segments = prompt_.segments;
    if (segments.empty() || segments.back().parse_special != special) segments.push_back({"", special});
    segments.back().text += text;
  }
  void mark(std::string_view text) { add(text, format_.control); }
  void content(std::string_view text) { add(text, false); }
  void write(const ChatForm& form, std::string_view text) {
    mark(form.before);
    content(form.strip ? strip(text) : text);
    mark(form.after);
  }

  Status no_place(std::size_t index) const {
    return invalid_argument("message {}: the model's chat template has no place for a system message{}", index + 1,
                            index == 0 ? "; say it as the user" : " here");
  }

  // Writes the start of a conversation: everything before the messages, and the first system message.
  Status write_start() {
    if (format_.think_switch) {
      write_switch();
      return {};
    }
    switch (format_.system_place) {
      case SystemPlace::kOwnMessage: write_own_system(); return {};
      case SystemPlace::kTop: write_top_system(); return {};
      case SystemPlace::kFirstUser:
      case SystemPlace::kLastUser: return {};
      case SystemPlace::kDropped: return leads() && !part_.whole ? no_place(0) : Status();
      case SystemPlace::kRefused: return leads() ? no_place(0) : Status();
    }
    return {};
  }

  void write_own_system() {
    if (leads()) {
      if (!format_.skip_empty_system || !messages_[0].content.empty()) write(format_.system, messages_[0].content);
    } else if (format_.default_system) {
      mark(format_.system.before + *format_.default_system + format_.system.after);
    }
  }

  void write_top_system() {
    const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
    if (!part_.whole) {
      if (leads()) content(messages_[0].content);
      return;
    }
    const auto newest = std::find_if(messages_.rbegin(), messages_.rend(), is_system);
    if (newest != messages_.rend()) content(newest->content);
  }

  void write_switch() {
    const ThinkSwitch& mode = *format_.think_switch;
    mark(mode.before + (thinks() ? "/think" : "/no_think") + mode.between);
    const std::string shown = leads() ? without(without(messages_[0].content, "/no_think"), "/think") : "";
    if (const std::string_view instructions = strip_right(shown); !instructions.empty()) {
      content(instructions);
      mark(mode.after);
    } else {
      mark(thinks() ? mode.thinking : mode.not_thinking);
    }
    mark(mode.end);
  }

  Status write_message(std::size_t index) {
    const std::string& role = messages_[index].role;
    const std::size_t turn = index - (folds() && leads() ? 1 : 0);
    if (format_.alternate && (role == "user") != (turn % 2 == 0))
      return invalid_argument(
          "message {} is from \"{}\", but the model's chat template wants user and assistant in turn, user first",
          index + 1, role);
    if (role == "user") {
      write_user(index, turn == 0);
    } else if (role == "assistant") {
      write_assistant(index);
    } else {
      return write_late_system(index);
    }
    return {};
  }

  Status write_late_system(std::size_t index) {
    const std::string& text = messages_[index].content;
    switch (format_.late) {
      case LateSystem::kOwnMessage:
        if (!format_.skip_empty_system || !text.empty()) write(format_.late_system, text);
        return {};
      case LateSystem::kDropped: return part_.whole ? Status() : no_place(index);
      case LateSystem::kRefused: return no_place(index);
    }
    return {};
  }

  // True if the system message is written inside this user message.
  bool takes_system(std::size_t index) const {
    if (!folds() || !leads()) return false;
    if (format_.system_place == SystemPlace::kLastUser && part_.whole) return index + 1 == messages_.size();
    const auto is_user = [](const ChatMessage& message) { return message.role == "user"; };
    const auto before = messages_.subspan(1, index - 1);
    return std::none_of(before.begin(), before.end(), is_user);
  }

  void write_user(std::size_t index, bool first) {
    if (format_.bos_again && first) prompt_.bos = true;
    if (format_.bos_again && !first) mark(format_.bos_text);
    const ChatForm& form = format_.user;
    const std::string& text = messages_[index].content;
    if (!takes_system(index)) {
      write(form, text);
      return;
    }
    mark(form.before + format_.fold_before);
    content(messages_[0].content);
    // System message and user text are stripped as one text; if the user's is empty, the result ends with fold_after.
    const std::string_view said = form.strip ? strip_right(text) : text;
    mark(form.strip && said.empty() ? strip_right(format_.fold_after) : format_.fold_after);
    content(said);
    mark(form.after);
  }

  void write_assistant(std::size_t index) {
    const std::string_view text = messages_[index].content;
    const bool newest = index + 1 == messages_.size();
    switch (format_.thoughts) {
      case Thoughts::kDropped: write(format_.assistant, after_thoughts(text)); return;
      case Thoughts::kDroppedUnlessLast:
        write(format_.assistant, newest ? text : strip_left(after_thoughts(text), '\n'));
        return;
      case Thoughts::kOfThisTurn: write_thoughtful(index, newest); return;
      case Thoughts::kKept: break;
    }
    if (!format_.think_switch) {
      write(format_.assistant, text);
      return;
    }
    mark(format_.assistant.before + (thinks() ? "" : format_.think_switch->empty_thought));
    content(strip_left(text, '\n'));
    mark(format_.assistant.after);
  }

  void write_thoughtful(std::size_t index, bool newest) {
    const std::string& text = messages_[index].content;
    const bool thought = text.find(kThoughtEnd) != std::string::npos;
    const std::string_view said = thought ? strip_left(after_thoughts(text), '\n') : text;
    const std::string_view thoughts = thoughts_of(text);
    if (index <= last_query() || (!newest && strip_left(thoughts_of(text), '\n').empty())) {
      write(format_.assistant, said);
      return;
    }
    mark(format_.assistant.before + "<think>\n");
    content(thoughts);
    mark("\n</think>\n\n");
    content(strip_left(said, '\n'));
    mark(format_.assistant.after);
  }

  // Returns the newest user message that is not a tool's response, or the newest message if there is none.
  std::size_t last_query() const {
    for (std::size_t i = messages_.size(); i-- > 0;) {
      const std::string& text = messages_[i].content;
      if (messages_[i].role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>")))
        return i;
    }
    return messages_.size() - 1;
  }

  const ChatFormat& format_;
  std::span<const ChatMessage> messages_;
  const ChatPart& part_;
  ChatPrompt prompt_;
};

}  // namespace

Result<ChatPrompt> write_chat(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatPart& part) {
  KVASIR_CHECK(part.first <= messages.size());
  return Writer(format, messages, part).write();
}

}  // namespace kvasir

#include "dialogue/find_format.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/stand_in.h"
#include "dialogue/call_parts.h"
#include "dialogue/literal.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;
using Shape = CallFormat::Shape;

// Texts that no template writes by itself.
constexpr std::string_view kTool = "kvasirtool", kOtherTool = "kvasirother", kFirstKey = "kvasirkey",
                           kFirstValue = "kvasirtext", kSecondKey = "kvasirnumber", kSecondValue = "7",
                           kThoughts = "kvasirthought", kSaid = "Kvasir1";
constexpr std::string_view kProbeArguments = R"({"kvasirkey": "kvasirtext", "kvasirnumber": 7})";
constexpr std::string_view kProbeTools =
    R"([{"type": "function", "function": {"name": "kvasirdescribed", "description": "d", "parameters":
    {"type": "object", "properties": {"p": {"type": "string", "description": "d"}}, "required": ["p"]}}}])";
constexpr std::size_t kMostSpace = 4;  // bytes around a closing mark; as grammars of answers allow
constexpr std::string_view kFirstId = "kvasir001", kSecondId = "kvasir002";

bool has(std::string_view text, std::string_view part) {
  return !part.empty() && text.find(part) != std::string_view::npos;
}

std::string_view common_start(std::string_view a, std::string_view b) {
  return a.substr(0, static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin()));
}

std::string_view common_end(std::string_view a, std::string_view b) {
  return a.substr(a.size() - static_cast<std::size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first -
                                                      a.rbegin()));
}

// Takes off the end of `text` if that is the start of a mark, <...> or [...], which has no end there.
std::string_view without_broken_end(std::string_view text) {
  const std::size_t open = text.find_last_of("<[");
  if (open == std::string_view::npos) return text;
  return text.find(text[open] == '<' ? '>' : ']', open) == std::string_view::npos ? text.substr(0, open) : text;
}

// Takes off the start of `text` if that is the end of a mark.
std::string_view without_broken_start(std::string_view text) {
  const std::size_t close = text.find_first_of(">]");
  if (close == std::string_view::npos) return text;
  const std::size_t open = text.find_first_of("<[");
  if (open < close) return text.substr(open);
  return open == std::string_view::npos ? text.substr(close + 1) : text.substr(open);
}

class FormatFinder {
 public:
  FormatFinder(const ChatTemplate& chat, const Vocabulary& vocabulary) : chat_(chat), vocabulary_(vocabulary) {}

  AnswerFormat find() {
    const MessageForm& form = chat_.message_form();
    format_.writes_results = form.writes_results;
    format_.channels = has(chat_.source(), "<|channel|>") && has(chat_.source(), "<|message|>");
    opened_ = rendered({question()}, true);
    plain_ = rendered({question(), said("")}, false);
    format_.writes_tools = has(rendered({question()}, true), "kvasirdescribed");
    find_thoughts();
    find_thought_closing();
    if (form.writes_calls) find_calls();
    // A name alone begins too many texts to tell a call by it.
    if (const Shape shape = format_.calls.shape;
        !format_.channels && (shape == Shape::kNamed || shape == Shape::kTagged) && !has_mark(format_.calls)) {
      format_.calls = {};
      format_.unknown_calls = true;
    }
    format_.writes_calls =
        format_.calls.shape != Shape::kNone || ((format_.channels || format_.unknown_calls) && form.writes_calls);
    if (format_.calls.shape == Shape::kNone && !format_.channels && !format_.unknown_calls) guess_calls();
    format_.short_ids = form.writes_calls && needs_short_ids();
    return format_;
  }

 private:
  static Message question() { return {"user", "Kvasir0"}; }
  static Message said(std::string thoughts) {
    Message message = {"assistant", std::string(kSaid)};
    message.reasoning = std::move(thoughts);
    return message;
  }
  static Message calling(int calls, std::string_view id = kFirstId) {
    Message message = {"assistant", ""};
    message.tool_calls.push_back({std::string(id), std::string(kTool), std::string(kProbeArguments)});
    if (calls > 1)
      message.tool_calls.push_back({std::string(kSecondId), std::string(kOtherTool), std::string(kProbeArguments)});
    return message;
  }

  std::string rendered(const std::vector<Message>& messages, bool open) const {
    const Result<ChatPrompt> prompt = chat_.render(messages, open);
    return prompt.ok() ? prompt->text() : "";
  }

  // Returns what the assistant's message has between the opening of an answer and the end of its turn.
  std::string answer_in(const std::string& text) const {
    std::string_view start = common_start(opened_, text);
    if (!plain_.empty()) start = common_start(start, plain_);
    std::string_view answer = std::string_view(text).substr(without_broken_end(start).size());
    const std::size_t said = plain_.rfind(kSaid);
    const std::string_view tail =
        said == std::string::npos ? std::string_view() : std::string_view(plain_).substr(said + kSaid.size());
    if (!trimmed(tail).empty() && answer.ends_with(tail)) answer.remove_suffix(tail.size());
    for (bool more = true; more;) {
      more = false;
      answer = answer.substr(0, answer.find_last_not_of(" \n\r\t") + 1);
      for (const std::string& end : ends())
        if (!end.empty() && answer.ends_with(end)) {
          answer.remove_suffix(end.size());
          more = true;
        }
    }
    return std::string(answer);
  }

  // Texts that end a turn, which calls may have in place of the usual one.
  const std::vector<std::string>& ends() const {
    if (!ends_.empty()) return ends_;
    ends_ = {"<|eot_id|>",
             "<|eom_id|>",
             "<|im_end|>",
             "<|call|>",
             "</s>",
             "<|end_of_text|>",
             "<turn|>",
             "<|tool_response>",
             "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
             chat_.closing().end};
    const auto add = [&](std::optional<TokenId> token) {
      if (token) ends_.push_back(vocabulary_.pieces[static_cast<std::size_t>(*token)]);
    };
    add(vocabulary_.eos);
    add(vocabulary_.eot);
    for (const TokenId token : vocabulary_.ends) add(token);
    return ends_;
  }

  // --- thoughts

  void find_thoughts() {
    if (format_.channels) return;
    if (!chat_.message_form().reasoning.empty()) {
      Message called = calling(1);
      called.reasoning = kThoughts;
      for (const Message& message : {said(std::string(kThoughts)), called})
        if (format_.thoughts.open.empty()) read_thoughts(rendered({question(), message}, false));
    }
    if (!format_.thoughts.open.empty()) return;
    const auto known = [&](std::string_view mark) {
      return has(chat_.source(), mark) || find_marker(vocabulary_, mark).has_value();
    };
    if (trimmed(opened_).ends_with("<think>") || (known("<think>") && known("</think>")) ||
        has(chat_.source(), "</think>"))
      format_.thoughts = {"<think>", "</think>"};
  }

  // Reads the white space around the closing mark off a message that has thoughts and content. A template that shows no
  // thoughts of earlier answers gets line breaks, as most others write them.
  void find_thought_closing() {
    ThoughtFormat& thoughts = format_.thoughts;
    if (thoughts.open.empty()) return;
    thoughts.closing = "\n" + thoughts.close + "\n\n";
    if (chat_.message_form().reasoning.empty()) return;
    const std::string text = rendered({question(), said(std::string(kThoughts))}, false);
    const std::size_t begin = text.find(kThoughts), end = text.find(kSaid, std::min(begin, text.size()));
    if (end == std::string::npos) return;
    const std::string_view between =
        std::string_view(text).substr(begin + kThoughts.size(), end - begin - kThoughts.size());
    if (trimmed(between) == thoughts.close && between.size() <= thoughts.close.size() + kMostSpace)
      thoughts.closing = between;
  }

  void read_thoughts(const std::string& text) {
    const std::size_t at = text.find(kThoughts);
    if (at == std::string::npos) return;
    const std::string_view before = trimmed(std::string_view(text).substr(0, at));
    const std::string_view after = trimmed_left(std::string_view(text).substr(at + kThoughts.size()));
    const std::size_t open = before.find_last_of("<[");
    if (open == std::string_view::npos || after.empty() || (after[0] != '<' && after[0] != '[')) return;
    const std::size_t close = after.find(after[0] == '<' ? '>' : ']');
    const std::string_view mark = before.substr(open);
    if (close == std::string_view::npos || mark.size() > 64 || close > 64) return;
    // What opens the turn opens no thoughts.
    if (has(opened_, mark) && !trimmed(opened_).ends_with(mark) &&
        trimmed(plain_.substr(0, plain_.rfind(kSaid))).ends_with(mark))
      return;
    format_.thoughts = {std::string(mark), std::string(after.substr(0, close + 1))};
    if (has(format_.thoughts.close, "end") && has(format_.thoughts.close, "|>") && has(plain_, format_.thoughts.close))
      format_.thoughts = {};
  }

  // --- calls

  void find_calls() {
    const std::string one = answer_in(rendered({question(), calling(1)}, false));
    const std::string two = answer_in(rendered({question(), calling(2)}, false));
    std::optional<Call> call = call_in(one, 0, kTool, kFirstId);
    if (!call) {
      format_.unknown_calls = !format_.channels && has(one, kFirstKey);
      return;
    }
    CallFormat& calls = format_.calls = call->format;
    const std::string_view before = without_thoughts(std::string_view(one).substr(0, call->begin));
    const std::string_view behind = std::string_view(one).substr(call->end);
    const std::optional<Call> first = call_in(two, 0, kTool, kFirstId);
    const std::optional<Call> second = first ? call_in(two, first->end, kOtherTool, kSecondId) : std::nullopt;
    if (!second) {
      calls.single = true;
      calls.open = before;
      calls.close = behind;
      return;
    }
    const std::string_view between = std::string_view(two).substr(first->end, second->begin - first->end);
    const std::string_view tail = std::string_view(two).substr(second->end);
    calls.close = without_broken_end(common_start(between, tail));
    std::string_view rest = between.substr(calls.close.size());
    calls.open = without_broken_start(common_end(before, rest));
    calls.section_open = before.substr(0, before.size() - calls.open.size());
    calls.between = rest.substr(0, rest.size() - calls.open.size());
    calls.section_close = tail.substr(calls.close.size());
  }

  std::string_view without_thoughts(std::string_view text) const {
    const ThoughtFormat& thoughts = format_.thoughts;
    if (const std::size_t at = text.find(thoughts.close); !thoughts.close.empty() && at != std::string_view::npos)
      text = text.substr(at + thoughts.close.size());
    return trimmed_left(text);
  }

  // A call found in a text: from `begin` to `end` is what CallFormat calls CALL.
  struct Call {
    CallFormat format;
    std::size_t begin = 0, end = 0;
  };

  static std::optional<Call> call_in(const std::string& text, std::size_t from, std::string_view tool,
                                     std::string_view id) {
    const std::size_t name = text.find(tool, from);
    const std::size_t key = text.find(kFirstKey, from);
    if (key == std::string::npos) return std::nullopt;
    if (name == std::string::npos) return named_by_id(text, from, id, key);
    if (const auto arguments = json_around(text, from, key)) {
      for (std::size_t open = text.find('{', from); open < name; open = text.find('{', open + 1))
        if (auto call = object_at(text, open, tool)) return call;
      if (arguments->first < name) return std::nullopt;
      Call call = {{}, name, arguments->second};
      call.format.shape = Shape::kNamed;
      std::string& behind = call.format.after_name;
      behind = text.substr(name + tool.size(), arguments->first - name - tool.size());
      for (const std::string_view id : {kFirstId, kSecondId})
        if (const std::size_t at = behind.find(id); at != std::string::npos) {
          call.format.after_id = behind.substr(at + id.size());
          behind.resize(at);
        }
      return call;
    }
    if (key < name) return std::nullopt;
    const std::size_t end = name + tool.size();
    if (text[end] == '(') return bracketed(text, name, end, Shape::kPython);
    if (text[end] == '{') return bracketed(text, name, end, Shape::kGemma);
    return tagged(text, name, end, key);
  }

  static std::optional<Call> named_by_id(const std::string& text, std::size_t from, std::string_view id,
                                         std::size_t key) {
    const std::size_t at = text.find(id, from);
    const auto arguments = json_around(text, from, key);
    if (at == std::string::npos || !arguments || arguments->first < at + id.size()) return std::nullopt;
    Call call = {{}, at, arguments->second};
    call.format.shape = Shape::kNamed;
    call.format.name_in_id = true;
    call.format.after_name = text.substr(at + id.size(), arguments->first - at - id.size());
    return trimmed(call.format.after_name).empty() ? std::nullopt : std::optional(call);
  }

  // Returns the object of the arguments: the innermost JSON around the first key.
  static std::optional<std::pair<std::size_t, std::size_t>> json_around(const std::string& text, std::size_t from,
                                                                        std::size_t key) {
    const std::size_t open = text.rfind('{', key);
    if (open == std::string::npos || open < from) return std::nullopt;
    const std::size_t size = find_closing(std::string_view(text).substr(open), false);
    if (size == std::string_view::npos) return std::nullopt;
    const auto json = parse_value(std::string_view(text).substr(open, size));
    if (!json || !json->is_object() || !json->contains(kFirstKey)) return std::nullopt;
    return std::pair(open, open + size);
  }

  static std::optional<Call> object_at(const std::string& text, std::size_t open, std::string_view tool) {
    const std::size_t size = find_closing(std::string_view(text).substr(open), false);
    if (size == std::string_view::npos) return std::nullopt;
    const auto json = parse_value(std::string_view(text).substr(open, size));
    if (!json || !json->is_object()) return std::nullopt;
    Call call = {{}, open, open + size};
    CallFormat& format = call.format;
    format.shape = Shape::kObject;
    if (read_keys(*json, tool, format)) return call;
    for (const auto& [key, inner] : json->items()) {
      if (!inner.is_object() || !read_keys(inner, tool, format)) continue;
      format.wrapper = key;
      return call;
    }
    return std::nullopt;
  }

  static bool read_keys(const Json& object, std::string_view tool, CallFormat& format) {
    for (const auto& [key, value] : object.items()) {
      if (value == tool) {
        format.name_key = key;
        format.name_first = format.arguments_key.empty();
      }
      if (value == kFirstId || value == kSecondId) format.id_key = key;
      if (value.is_object() && value.contains(kFirstKey)) format.arguments_key = key;
    }
    return !format.name_key.empty() && !format.arguments_key.empty();
  }

  static std::optional<Call> bracketed(const std::string& text, std::size_t name, std::size_t open, Shape shape) {
    const std::size_t size = find_closing(std::string_view(text).substr(open), shape == Shape::kGemma);
    if (size == std::string_view::npos) return std::nullopt;
    Call call = {{}, name, open + size};
    call.format.shape = shape;
    return call;
  }

  static std::optional<Call> tagged(const std::string& text, std::size_t name, std::size_t name_end, std::size_t key) {
    const std::string_view all = text;
    const std::size_t key_end = key + kFirstKey.size();
    const std::size_t value = all.find(kFirstValue, key_end);
    const std::size_t other = all.find(kSecondKey, key_end);
    if (value == std::string_view::npos || other == std::string_view::npos || other < value) return std::nullopt;
    const std::size_t value_end = value + kFirstValue.size(), other_end = other + kSecondKey.size();
    const std::size_t number = all.find(kSecondValue, other_end);
    if (number == std::string_view::npos) return std::nullopt;
    const std::string_view to_key = all.substr(name_end, key - name_end);
    const std::string_view to_other = all.substr(value_end, other - value_end);
    Call call = {{}, name, 0};
    CallFormat& format = call.format;
    format.shape = Shape::kTagged;
    format.key_open = without_broken_start(common_end(to_key, to_other));
    format.after_name = to_key.substr(0, to_key.size() - format.key_open.size());
    format.value_close = to_other.substr(0, to_other.size() - format.key_open.size());
    format.string_open = all.substr(key_end, value - key_end);
    format.other_open = all.substr(other_end, number - other_end);
    call.end = number + kSecondValue.size();
    if (format.key_open.empty() || trimmed(format.value_close).empty() || trimmed(format.string_open).empty() ||
        trimmed(format.other_open).empty() || !all.substr(call.end).starts_with(format.value_close))
      return std::nullopt;
    call.end += format.value_close.size();
    return call;
  }

  // --- calls that no render shows

  void guess_calls() {
    const auto known = [&](std::string_view mark) {
      return has(chat_.source(), mark) || find_marker(vocabulary_, mark).has_value();
    };
    CallFormat& calls = format_.calls;
    calls = {};
    if (known("<|tool_calls_section_begin|>")) {  // Kimi K2
      calls.shape = Shape::kNamed;
      calls.name_in_id = true;
      calls.section_open = "<|tool_calls_section_begin|>";
      calls.open = "<|tool_call_begin|>";
      calls.after_name = "<|tool_call_argument_begin|>";
      calls.close = "<|tool_call_end|>";
      calls.section_close = "<|tool_calls_section_end|>";
      return;
    }
    if (known("<|tool_call_start|>")) {  // LFM2
      calls.shape = Shape::kPython;
      calls.section_open = "<|tool_call_start|>[";
      calls.between = ", ";
      calls.section_close = "]<|tool_call_end|>";
      return;
    }
    calls.shape = Shape::kObject;
    calls.name_key = "name";
    calls.arguments_key = "arguments";
    if (known("<|tool_call|>")) {  // Phi-4-mini, Granite 3
      calls.section_open = "<|tool_call|>[";
      calls.between = ", ";
      calls.section_close = known("<|/tool_call|>") ? "]<|/tool_call|>" : "]";
    } else if (known("[TOOL_CALLS]")) {
      calls.section_open = "[TOOL_CALLS][";
      calls.between = ", ";
      calls.section_close = "]";
    } else {
      calls.open = "<tool_call>\n";
      calls.close = "\n</tool_call>";
      calls.between = "\n";
    }
  }

  // Mistral's templates refuse other ids.
  bool needs_short_ids() const { return rendered({question(), calling(1, "call_0123456789abcdef")}, false).empty(); }

  const ChatTemplate& chat_;
  const Vocabulary& vocabulary_;
  AnswerFormat format_;
  std::string opened_, plain_;
  mutable std::vector<std::string> ends_;
};

}  // namespace

AnswerFormat find_format(const ChatTemplate& chat, const Vocabulary& vocabulary) {
  const std::array arguments = {std::pair<std::string, std::string>("tools", kProbeTools)};
  const auto with_tools = chat.with_arguments(arguments, vocabulary);
  AnswerFormat format = FormatFinder(with_tools.ok() ? **with_tools : chat, vocabulary).find();
  if (format.writes_tools || !has(chat.source(), "xml_tools")) return format;
  const std::array others = {std::pair<std::string, std::string>("xml_tools", kProbeTools)};  // SmolLM3
  const auto with_others = chat.with_arguments(others, vocabulary);
  if (!with_others.ok()) return format;
  AnswerFormat other = FormatFinder(**with_others, vocabulary).find();
  if (!other.writes_tools) return format;
  other.tools_variable = "xml_tools";
  return other;
}

}  // namespace kvasir

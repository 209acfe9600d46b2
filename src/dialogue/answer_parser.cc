#include "dialogue/answer_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dialogue/call_events.h"
#include "dialogue/call_parts.h"
#include "dialogue/json_reader.h"
#include "dialogue/literal.h"

namespace kvasir {
namespace {

using Kind = AnswerPiece::Kind;
using Match = LooseMatch::Kind;
using Shape = CallFormat::Shape;

constexpr std::size_t kLongestId = 256;
constexpr std::string_view kWhite = " \t\r\n";
class FormatParser final : public AnswerParser {
 public:
  FormatParser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed)
      : rules_(std::move(rules)), calls_(rules_->format.calls), events_(rules_, seed), object_(calls_) {
    if (rules_->starts_in_thoughts) state_ = State::kThoughts;
    if (rules_->tools.empty() || calls_.shape == Shape::kNone) return;
    triggers_ = triggers_of(calls_);
    bare_ = !has_mark(calls_);
  }

  void push(std::string_view text, std::vector<AnswerPiece>& pieces) override {
    buffer_ += text;
    run(pieces);
  }

  void finish(std::vector<AnswerPiece>& pieces) override {
    ending_ = true;
    run(pieces);
    if (events_.open()) {
      events_.break_off(raw_ + buffer_);
      buffer_.clear();
      state_ = State::kClosing;
    }
    while (state_ >= State::kOpening && state_ < State::kClosing) {  // a call that breaks off before its name is known
      fail();
      run(pieces);
    }
    if (state_ == State::kThoughts) {
      if (!trimmed(buffer_).empty()) events_.text(Kind::kReasoning, space_ + std::string(trimmed_right(buffer_)));
    } else if (events_.calls() == 0) {
      events_.text(Kind::kContent, space_ + buffer_);
    }
    buffer_ = space_ = std::string();
  }

 private:
  enum class State {
    kText,
    kThoughts,
    kOpening,    // behind a trigger's start: the rest of what opens a call
    kObject,     // from here on in a call
    kName,       //
    kJson,       // kNamed: the arguments
    kKeyOrEnd,   // kTagged: a key, or the end of the call
    kKey,        //
    kString,     // kTagged: a value that is text
    kOther,      // kTagged: any other value
    kBracketed,  // kPython, kGemma: the arguments
    kClosing,    // behind a call: what closes it
    kNext,       // another call, or the end of the section
  };

  void run(std::vector<AnswerPiece>& pieces) {
    events_.write_to(pieces);
    while (step()) {
    }
  }

  // Reads on; returns false once more text is needed.
  bool step() {
    if (events_.calls() >= rules_->most_calls) {
      buffer_ = space_ = std::string();
      state_ = State::kText;
      return false;
    }
    switch (state_) {
      case State::kText: return in_text();
      case State::kThoughts: return in_thoughts();
      case State::kOpening: return in_opening();
      case State::kObject: return in_object();
      case State::kName: return in_name();
      case State::kJson: return in_json();
      case State::kKeyOrEnd: return at_key_or_end();
      case State::kKey: return in_key();
      case State::kString: return in_string();
      case State::kOther: return in_other();
      case State::kBracketed: return in_bracketed();
      case State::kClosing: return in_closing();
      case State::kNext: return at_next();
    }
    return false;
  }

  // Takes text off the front of the buffer; within a call it is part of that.
  std::string take(std::size_t size) {
    std::string text = buffer_.substr(0, size);
    buffer_.erase(0, size);
    if (state_ >= State::kOpening) raw_ += text;
    return text;
  }
  void skip_white() { take(std::min(buffer_.find_first_not_of(kWhite), buffer_.size())); }

  // --- text and thoughts

  // Says content; keeps back white space at its end, which is dropped before a call.
  void say(std::string_view text) {
    if (text.empty()) return;
    if (!said_ && (thought_ || events_.calls() > 0)) text = trimmed_left(text);
    const std::string_view solid = trimmed_right(text);
    if (!solid.empty()) {
      said_ = true;
      events_.text(Kind::kContent, space_);
      events_.text(Kind::kContent, solid);
      space_.clear();
    }
    space_ += text.substr(solid.size());
  }

  bool in_text() {
    const ThoughtFormat& thoughts = rules_->format.thoughts;
    if (!said_) {
      const std::size_t start = buffer_.find_first_not_of(kWhite);
      if (start == std::string::npos) return false;
      const std::string_view rest = std::string_view(buffer_).substr(start);
      if (!thoughts.open.empty()) {
        if (rest.starts_with(thoughts.open)) {
          take(start + thoughts.open.size());
          state_ = State::kThoughts;
          space_.clear();
          return true;
        }
        if (!ending_ && thoughts.open.starts_with(rest)) return false;
      }
      if (bare_ &&
          (rest[0] == '{' || (rest[0] == '[' && trimmed(calls_.section_open + calls_.open).starts_with('[')))) {
        space_ += take(start);
        return begin_call("");
      }
    }
    std::size_t at = std::string::npos, partial = 0;
    const CallTrigger* found = nullptr;
    for (const CallTrigger& trigger : triggers_) {
      const std::size_t here = buffer_.find(trigger.mark);
      if (here < at) {
        at = here;
        found = &trigger;
      }
      partial = std::max(partial, partial_marker(buffer_, trigger.mark));
    }
    if (found != nullptr) {
      say(take(at));
      return begin_call(found->mark);
    }
    say(take(buffer_.size() - (ending_ && (said_ || events_.calls() == 0) ? 0 : partial)));  // else of another call
    return false;
  }

  // As say().
  void think(std::string_view text) {
    const std::string_view solid = trimmed_right(text);
    if (!solid.empty()) {
      events_.text(Kind::kReasoning, std::exchange(space_, {}));
      events_.text(Kind::kReasoning, solid);
      thought_ = true;
    }
    space_ += text.substr(solid.size());
  }

  bool in_thoughts() {
    const std::string& close = rules_->format.thoughts.close;
    if (!thought_) {
      buffer_.erase(0, std::min(buffer_.find_first_not_of(kWhite), buffer_.size()));
      if (buffer_.empty()) return false;
    }
    const std::size_t at = buffer_.find(close);
    think(take(at != std::string::npos ? at : buffer_.size() - partial_marker(buffer_, close)));
    if (at == std::string::npos) return false;
    take(close.size());
    space_.clear();
    thought_ = true;
    said_ = false;
    state_ = State::kText;
    return true;
  }

  // --- the start of a call

  bool begin_call(std::string_view mark) {
    state_ = State::kOpening;
    raw_.clear();
    mark_ = mark;
    return true;
  }

  bool in_opening() {
    bool part = false;
    if (mark_.empty()) {
      const LooseMatch match = match_loosely(buffer_, calls_.section_open + calls_.open);
      part = match.kind == Match::kPart;
      if (match.kind == Match::kYes) return opened(match.size);
    }
    for (const CallTrigger& trigger : triggers_) {
      if (trigger.mark != mark_) continue;
      const LooseMatch match = match_loosely(buffer_, trigger.opening);
      if (match.kind == Match::kYes) return opened(match.size);
      part |= match.kind == Match::kPart;
    }
    if (part && !ending_) return false;
    return fail();
  }

  bool opened(std::size_t size) {
    take(size);
    state_ = calls_.shape == Shape::kObject ? State::kObject : State::kName;
    object_ = CallObjectReader(calls_);
    sent_ = 0;
    return true;
  }

  // Gives up the call: what was read of it is content. Only its mark is not read again.
  bool fail() {
    const bool cut = ending_ && !events_.open() && events_.calls() > 0;  // behind another call it is left out
    if (cut) buffer_ = raw_ = mark_ = space_ = std::string();
    said_ = true;
    state_ = State::kText;
    events_.text(Kind::kContent, std::exchange(space_, {}));
    if (events_.open()) {
      events_.fail(raw_);
    } else {
      buffer_.insert(0, raw_);
      events_.text(Kind::kContent, take(std::min(std::max<std::size_t>(mark_.size(), 1), buffer_.size())));
    }
    raw_.clear();
    return true;
  }

  bool begin(const Tool* tool, std::string_view id = {}) {
    if (tool == nullptr) return false;
    space_.clear();
    tool_ = tool;
    events_.begin(tool->name, id);
    return true;
  }

  bool end() {
    const int before = events_.calls();
    events_.end(raw_);
    said_ = events_.calls() == before;
    state_ = said_ ? State::kText : State::kClosing;
    return true;
  }

  // --- kObject

  bool in_object() {
    std::size_t i = 0;
    JsonProgress progress = JsonProgress::kMore;
    for (; i < buffer_.size() && progress == JsonProgress::kMore; ++i) {
      progress = object_.push(buffer_[i]);
      if (!events_.open() && !object_.name().empty() && !begin(rules_->find_tool(object_.name())))
        progress = JsonProgress::kBad;
    }
    take(i);
    if (progress == JsonProgress::kBad) return fail();
    const std::string& arguments = object_.arguments();
    // Some models write the arguments as a string of JSON.
    const bool text = arguments.starts_with('"');
    if (events_.open() && !text && arguments.size() > sent_) {
      events_.arguments(std::string_view(arguments).substr(sent_));
      sent_ = arguments.size();
    }
    if (progress != JsonProgress::kDone) return false;
    if (!events_.open()) return fail();
    if (text) {
      const auto inner = nlohmann::json::parse(arguments, nullptr, false);
      events_.arguments(inner.is_string() ? inner.get<std::string>() : arguments);
    } else if (arguments.empty()) {
      events_.arguments("{}");
    }
    return end();
  }

  // --- names, and the arguments of kNamed, kPython and kGemma

  bool in_name() {
    skip_white();
    if (calls_.name_in_id) return in_id();
    const Tool* found = nullptr;
    std::size_t size = 0;
    for (const Tool& tool : rules_->tools) {
      const std::string_view rest = buffer_;
      if (tool.name.size() >= rest.size() && std::string_view(tool.name).starts_with(rest) && !ending_) return false;
      if (!rest.starts_with(tool.name) || (found != nullptr && found->name.size() >= tool.name.size())) continue;
      const std::string_view behind = rest.substr(tool.name.size());
      if (!behind.empty() && continues_name(behind.front())) continue;
      const LooseMatch match = match_loosely(behind, behind_name(calls_));
      if (match.kind == Match::kPart && !ending_) return false;
      if (match.kind != Match::kYes) continue;
      found = &tool;
      size = tool.name.size() + (is_bracketed(calls_.shape) ? 0 : match.size);
    }
    if (found == nullptr) return fail();
    begin(found);
    take(size);
    first_ = true;
    end_ = {};
    state_ = is_bracketed(calls_.shape)       ? State::kBracketed
             : calls_.shape == Shape::kTagged ? State::kKeyOrEnd
                                              : State::kJson;
    return true;
  }

  bool in_id() {
    const std::string_view mark = trimmed(calls_.after_name);
    const std::size_t at = buffer_.find(mark);
    if (at == std::string::npos) return buffer_.size() > kLongestId ? fail() : false;
    const std::string id(trimmed(std::string_view(buffer_).substr(0, at)));
    if (!begin(tool_of_id(*rules_, id), id)) return fail();
    take(at + mark.size());
    end_ = {};
    state_ = State::kJson;
    return true;
  }

  bool in_json() {
    std::size_t i = 0;
    if (!end_.started()) {
      if (!calls_.after_id.empty() && raw_.find(calls_.after_id) == std::string::npos) {
        const std::size_t at = buffer_.find(calls_.after_id);
        if (at == std::string::npos) return buffer_.size() > kLongestId ? fail() : false;
        take(at + calls_.after_id.size());
      }
      skip_white();
      if (buffer_.empty()) return false;
      if (buffer_[0] != '{') return fail();
    }
    JsonProgress progress = JsonProgress::kMore;
    for (; i < buffer_.size() && progress == JsonProgress::kMore; ++i) progress = end_.push(buffer_[i]);
    const std::string text = take(i);
    if (progress == JsonProgress::kBad) return fail();
    events_.arguments(text);
    return progress == JsonProgress::kDone ? end() : false;
  }

  bool in_bracketed() {
    const bool gemma = calls_.shape == Shape::kGemma;
    // Looks again only once another bracket has closed.
    if (buffer_.find(gemma ? '}' : ')', looked_) == std::string::npos) {
      looked_ = buffer_.size();
      return false;
    }
    const std::size_t size = find_closing(buffer_, gemma);
    looked_ = size == std::string::npos ? buffer_.size() : 0;
    if (size == std::string::npos) return false;
    const std::string text = take(size);
    const auto arguments =
        gemma ? parse_gemma_literal(text) : parse_python_arguments(std::string_view(text).substr(1, text.size() - 2));
    if (!arguments) return fail();
    events_.arguments(spaced_json(*arguments));
    return end();
  }

  // --- kTagged

  bool at_key_or_end() {
    const LooseMatch key = match_loosely(buffer_, calls_.key_open);
    if (key.kind == Match::kYes) {
      take(key.size);
      state_ = State::kKey;
      return true;
    }
    const LooseMatch close = match_loosely(buffer_, calls_.close);
    if ((key.kind == Match::kPart || close.kind == Match::kPart) && !ending_) return false;
    if (close.kind != Match::kYes) return fail();
    events_.arguments(first_ ? "{}" : "}");
    return end();
  }

  bool in_key() {
    const ValueOpening opening = find_value(calls_, buffer_);
    if (!opening.found) return ending_ || buffer_.size() > kLongestParameter ? fail() : false;
    if (buffer_.size() < opening.size + opening.space.size() && !ending_) return false;
    const std::string key(trimmed(std::string_view(buffer_).substr(0, opening.at)));
    take(opening.size);
    if (std::string_view(buffer_).starts_with(opening.space)) take(opening.space.size());
    const bool told = calls_.string_open != calls_.other_open;
    schema_ = schema_of(*tool_, key);
    const WantedValue wanted = wanted_by(schema_);
    const bool text = wanted == WantedValue::kText || (wanted == WantedValue::kAny && told && opening.is_text);
    events_.arguments((first_ ? "{" : ", ") + spaced_json(key) + ": ");
    first_ = false;
    if (text) events_.arguments("\"");
    state_ = text ? State::kString : State::kOther;
    return true;
  }

  // Takes a value and the mark behind it, which begins at `at`.
  std::string take_value(std::size_t at, std::string_view close) {
    const std::string_view mark = trimmed(close), space = close.substr(0, close.size() - mark.size());
    std::string text = take(at);
    take(mark.size());
    if (text.ends_with(space)) text.resize(text.size() - space.size());
    state_ = State::kKeyOrEnd;
    return text;
  }

  bool in_string() {
    const std::string close = value_end(calls_);
    const std::size_t at = buffer_.find(trimmed(close));
    if (at != std::string::npos) {
      events_.arguments(escaped(take_value(at, close)) + "\"");
      return true;
    }
    events_.arguments(escaped(take(certain_bytes(buffer_, close))));
    return false;
  }

  bool in_other() {
    const std::string close = value_end(calls_);
    const std::string_view mark = trimmed(close);
    const std::size_t at = buffer_.find(mark, looked_ > mark.size() ? looked_ - mark.size() : 0);
    looked_ = at == std::string::npos ? buffer_.size() : 0;
    if (at == std::string::npos) return false;
    events_.arguments(spaced_json(value_of(take_value(at, close), schema_)));
    return true;
  }

  // --- behind a call

  bool in_closing() {
    const LooseMatch match = match_loosely(buffer_, calls_.close);
    if (match.kind == Match::kPart && !ending_) return false;
    if (match.kind != Match::kNo) take(match.kind == Match::kYes ? match.size : buffer_.size());  // cut within it
    state_ = State::kNext;
    return true;
  }

  bool at_next() {
    const std::string again = calls_.between + calls_.open;
    // Objects may follow each other with nothing but white space between them.
    const bool can_repeat =
        !calls_.single &&
        (!trimmed(again).empty() || (calls_.shape == Shape::kObject && trimmed_left(buffer_).starts_with('{')));
    const LooseMatch next = can_repeat ? match_loosely(buffer_, again) : LooseMatch{};
    if (next.kind == Match::kYes) {
      raw_.clear();
      mark_.clear();
      return opened(next.size);
    }
    const LooseMatch close = match_loosely(buffer_, calls_.section_close);
    const bool closes = close.kind == Match::kPart && !trimmed(calls_.section_close).empty();
    const bool part = closes || next.kind == Match::kPart;
    if (part && !ending_) return false;
    if (part || close.kind == Match::kYes) take(close.kind == Match::kYes ? close.size : buffer_.size());
    state_ = State::kText;
    return !buffer_.empty();
  }

  std::shared_ptr<const AnswerRules> rules_;
  const CallFormat& calls_;
  CallEvents events_;
  std::vector<CallTrigger> triggers_;
  bool bare_ = false;  // calls have no mark: only an answer's first text can be one

  State state_ = State::kText;
  bool ending_ = false;
  std::string buffer_;          // text that is not read yet
  std::string space_;           // white space read and not said yet
  bool said_ = false;           // some content since the start, the newest thoughts or the newest call
  bool thought_ = false;        // some thoughts
  std::string raw_;             // of the call under way, or of its start
  std::string mark_;            // what began it
  CallObjectReader object_;     // kObject
  std::size_t sent_ = 0;        // kObject: bytes of the arguments
  JsonEnd end_;                 // kNamed
  const Tool* tool_ = nullptr;  // of the call under way
  const nlohmann::ordered_json* schema_ = nullptr;  // kTagged: of the value under way
  bool first_ = true;                               // kTagged: no argument was read yet
  std::size_t looked_ = 0;                          // bytes of the buffer that were searched for an end
};

}  // namespace

std::unique_ptr<AnswerParser> make_answer_parser(std::shared_ptr<const AnswerRules> rules, std::uint64_t seed) {
  return std::make_unique<FormatParser>(std::move(rules), seed);
}

}  // namespace kvasir

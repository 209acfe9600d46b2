// How a chat template writes thoughts and calls of tools in an answer. Found by rendering conversations
// (find_format.h). Thread-safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "kvasir/request.h"

namespace kvasir {

// The calls of one answer: section_open (open CALL close) between (open CALL close) ... section_close.
struct CallFormat {
  // What stands for CALL.
  enum class Shape {
    kNone,    // the template writes no calls
    kObject,  // {"name": "f", "arguments": {...}}, with the keys below
    kNamed,   // f, after_name, {...}
    kTagged,  // f, after_name, then for each argument: key_open KEY string_open VALUE value_close
    kPython,  // f(key="text", other=7)
    kGemma,   // f{key:<|"|>text<|"|>,other:7}
  };
  Shape shape = Shape::kNone;
  std::string section_open, open, close, between, section_close;
  bool single = false;  // the template writes one call per answer

  // kObject. `wrapper`: key of the object that holds name and arguments; "": the call is that object. `id_key`: ""
  // where no id is written. `name_first`: the name stands before the arguments.
  std::string wrapper, name_key, arguments_key, id_key;
  bool name_first = true;

  bool name_in_id = false;  // kNamed: an id, functions.NAME:NUMBER, stands for the name (Kimi)

  std::string after_name;   // kNamed, kTagged
  std::string after_id;     // kNamed: an id stands behind `after_name`, and this behind the id; "": no id
  std::string key_open;     // kTagged
  std::string string_open;  // kTagged: between a key and a value that is text
  std::string other_open;   // kTagged: between a key and any other value, which is JSON
  std::string value_close;  // kTagged
};

struct ThoughtFormat {
  std::string open, close;  // "": the template knows no thoughts
  // Between thoughts and the content behind them: `close`, and the white space that the template writes around it.
  std::string closing = {};
};

// Marks that end a message in the channels of gpt-oss; the last two also begin the next one.
inline constexpr std::array<std::string_view, 5> kMessageEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>",
                                                                 "<|channel|>"};

struct AnswerFormat {
  CallFormat calls;
  bool unknown_calls = false;  // the template writes calls in a form that `calls` cannot describe
  ThoughtFormat thoughts;
  bool channels = false;   // the channels of gpt-oss, which `calls` and `thoughts` do not describe
  bool short_ids = false;  // ids of calls have 9 letters and digits
  std::string tools_variable = "tools";
  bool writes_tools = false;  // the template shows tools to the model
  bool writes_calls = false;  // the template writes calls of earlier answers
  bool writes_results = false;
};

// Returns an id as CallFormat::name_in_id has it, and whether an id of a tool's call is one.
std::string named_id(std::string_view name, std::size_t number);
bool is_named_id(std::string_view id, std::string_view name);

// Returns the calls as the format writes them; arguments that are not JSON count as {}.
std::string written_calls(const CallFormat& format, std::span<const ToolCall> calls);

// Compares the start of `text` with `literal`, ignoring white space in both.
struct LooseMatch {
  enum class Kind { kNo, kPart, kYes };  // kPart: the text ends within the literal
  Kind kind = Kind::kNo;
  std::size_t size = 0;  // kYes: bytes of `text`
};
LooseMatch match_loosely(std::string_view text, std::string_view literal);

// Returns the text without white space at its ends.
std::string_view trimmed(std::string_view text);
std::string_view trimmed_left(std::string_view text);
std::string_view trimmed_right(std::string_view text);

// Returns the length of the longest end of `text` with which `marker` begins without being complete.
std::size_t partial_marker(std::string_view text, std::string_view marker);

}  // namespace kvasir

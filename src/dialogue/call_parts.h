// What a format and a tool say of the parts of a call.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dialogue/answer_form.h"

namespace kvasir {

// A text that begins a call in the middle of other text, and what stands from there to the call.
struct CallTrigger {
  std::string mark;
  std::string opening;
};

// Returns the first mark, <...> or [...], of a text that begins with one; else the text up to white space.
std::string mark_of(std::string_view text);

// Whether calls begin with a mark. A bracket alone is none: it begins too many texts.
bool has_mark(const CallFormat& calls);
std::vector<CallTrigger> triggers_of(const CallFormat& calls);

// Whether arguments stand in brackets, in a notation other than JSON.
bool is_bracketed(CallFormat::Shape shape);

// Returns what stands behind a call's name.
std::string_view behind_name(const CallFormat& calls);

// Returns a tool's schema of a parameter, or what it refers to where it is a reference alone; null: there is none.
const nlohmann::ordered_json* schema_of(const Tool& tool, const std::string& parameter);

// Kinds of values that a schema allows: text (by its type, or if all its constants are text), no text, or both. A null
// schema allows both.
enum class WantedValue { kText, kOther, kAny };
WantedValue wanted_by(const nlohmann::ordered_json* schema);

// Returns the value that a text stands for: JSON or a constant of Python, or else the text itself; also the text where
// the schema allows texts, but not the type of that value. `schema`: may be null.
nlohmann::ordered_json value_of(std::string_view text, const nlohmann::ordered_json* schema);

// The most bytes of a parameter's name, together with the mark behind it, of CallFormat::Shape::kTagged.
inline constexpr std::size_t kLongestParameter = 4096;

// Where a value of CallFormat::Shape::kTagged begins: behind its key, `size` bytes of which `at` are the key, and
// `space`.
struct ValueOpening {
  bool found = false;
  std::size_t at = 0;
  std::size_t size = 0;
  std::string_view space;  // white space that the format writes in front of the value
  bool is_text = false;    // it is opened as text is
};
ValueOpening find_value(const CallFormat& calls, std::string_view text);

// Returns what ends a value: white space before the mark is the format's, white space behind it is not looked at.
std::string value_end(const CallFormat& calls);

// Returns the tool that an id names as CallFormat::name_in_id has it; also without "functions." or a number. Null:
// none.
const Tool* tool_of_id(const AnswerRules& rules, std::string_view id);

// Returns how many bytes of an unfinished value are its own, whatever follows: without what may be the start of `close`
// and without a character that is not complete.
std::size_t certain_bytes(std::string_view value, std::string_view close);

// Whether a tool's name may go on with this character.
bool continues_name(char c);

// Returns `text` as it stands between the quotation marks of JSON.
std::string escaped(std::string_view text);

}  // namespace kvasir

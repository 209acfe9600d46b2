// Methods of strings, lists and dictionaries.
#include <algorithm>
#include <array>
#include <limits>

#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"
#include "jinja/search.h"

namespace kvasir::jinja {
namespace {

using Form = List::Form;

// Python's names; what is not implemented is refused when it is called.
constexpr std::array<std::string_view, 47> kStringMethods = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
constexpr std::array<std::string_view, 11> kListMethods = {"append", "clear", "copy",   "count",   "extend", "index",
                                                           "insert", "pop",   "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 11> kDictMethods = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                           "pop",   "popitem", "setdefault", "update", "values"};

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::int64_t characters_before(const Text& text, std::size_t offset) {
  return static_cast<std::int64_t>(count_characters(std::string_view(text.bytes()).substr(0, offset)));
}

// Splits at white space, from the left or from the right.
std::vector<Range> words_of(std::string_view text, std::int64_t count, bool right) {
  std::vector<Range> words;
  Range rest = strip(text, nullptr, !right, right);
  while (rest.size > 0) {
    const std::string_view bytes = text.substr(rest.from, rest.size);
    std::size_t cut = right ? 0 : bytes.size();  // where the word starts, or ends
    if (count < 0 || static_cast<std::int64_t>(words.size()) < count) {
      const auto size_at = [&](std::size_t at) {
        return right ? last_character_size(bytes.substr(0, at)) : character_size(bytes.substr(at));
      };
      std::size_t at = right ? bytes.size() : 0;
      for (const std::size_t end = cut; at != end;) {
        const std::size_t size = size_at(at);
        if (is_space(bytes.substr(right ? at - size : at, size))) break;
        at = right ? at - size : at + size;
      }
      cut = at;
    }
    words.push_back(right ? Range{rest.from + cut, bytes.size() - cut} : Range{rest.from, cut});
    const Range left =
        right ? strip(bytes.substr(0, cut), nullptr, false, true) : strip(bytes.substr(cut), nullptr, true, false);
    rest = right ? Range{rest.from, left.size} : Range{rest.from + cut + left.from, left.size};
    if (cut == (right ? 0 : bytes.size())) break;
  }
  if (right) std::reverse(words.begin(), words.end());
  return words;
}

std::string reversed(const std::string& bytes) {
  return {bytes.rbegin(), bytes.rend()};
}

std::vector<Range> parts_of(Heap& heap, const std::string& text, const std::string& separator, std::int64_t count) {
  if (separator.empty()) fail("the separator is empty");
  std::vector<Range> parts;
  std::size_t from = 0;
  while (count < 0 || static_cast<std::int64_t>(parts.size()) < count) {
    const std::size_t found = find_part(heap, text, separator, from);
    if (found == std::string::npos) break;
    heap.step();
    parts.push_back({from, found - from});
    from = found + separator.size();
  }
  parts.push_back({from, text.size() - from});
  return parts;
}

std::vector<Range> parts_of(Heap& heap, const std::string& text, const std::string& separator, std::int64_t count,
                            bool right) {
  if (!right) return parts_of(heap, text, separator, count);
  heap.require(text.size() + separator.size());
  std::vector<Range> parts = parts_of(heap, reversed(text), reversed(separator), count);
  for (Range& part : parts) part.from = text.size() - part.from - part.size;
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Heap& heap, const Text& text, const Given& given, bool right) {
  const auto bound = bind("split", given, {"sep", "maxsplit"});
  const std::int64_t count = whole(bound[1], -1);
  const bool at_spaces = bound[0] == nullptr || bound[0]->is_none();
  // From the right, each word is looked for from the start of the text.
  heap.step(text.size() / 4 * (right && at_spaces ? 1 + text.size() / 4 : 1));
  std::vector<Value> items;
  for (const Range& part :
       at_spaces ? words_of(text.bytes(), count, right)
                 : parts_of(heap, text.bytes(), string_argument(bound[0], "split").bytes(), count, right)) {
    heap.step();
    items.push_back(heap.string(text.substring(part.from, part.size)));
  }
  return heap.list(std::move(items));
}

Value partition(Heap& heap, const Text& text, const Given& given, bool right) {
  const Text& separator = string_argument(bind("partition", given, {"sep"}, 1)[0], "partition");
  const auto parts = parts_of(heap, text.bytes(), separator.bytes(), 1, right);
  const auto part = [&](std::size_t i) { return heap.string(text.substring(parts[i].from, parts[i].size)); };
  const Value empty = heap.string(Text());
  if (parts.size() == 1)
    return heap.list(right ? std::vector{empty, empty, part(0)} : std::vector{part(0), empty, empty}, Form::kTuple);
  const std::size_t at = parts[0].from + parts[0].size;
  return heap.list({part(0), heap.string(text.substring(at, separator.size())), part(1)}, Form::kTuple);
}

Value has_end(const Text& text, std::string_view name, const Given& given) {
  const Value& ends = *bind(name, given, {name == "startswith" ? "prefix" : "suffix"}, 1)[0];
  const auto fits = [&](const Value& end) {
    const std::string& bytes = string_argument(&end, name).bytes();
    return name == "startswith" ? text.bytes().starts_with(bytes) : text.bytes().ends_with(bytes);
  };
  if (ends.list() == nullptr || ends.list()->form != Form::kTuple) return Value::boolean(fits(ends));
  return Value::boolean(std::any_of(ends.list()->items.begin(), ends.list()->items.end(), fits));
}

// str.format() with {}, {0} and {name}, without formats or attributes.
Value format(Heap& heap, const Text& text, const Given& given) {
  Text formatted;
  const std::string& bytes = text.bytes();
  std::size_t next = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    heap.require(formatted.size() + bytes.size());
    const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    formatted.append(text, at, brace - at);
    at = brace;
    if (at == bytes.size()) break;
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      formatted.append(text, at, 1);
      at += 2;
      continue;
    }
    const std::size_t end = bytes.find('}', at);
    if (bytes[at] == '}' || end == std::string::npos) fail("format() found a single brace");
    const std::string field = bytes.substr(at + 1, end - at - 1);
    const bool number =
        field.empty() || (field.size() < 4 && field.find_first_not_of("0123456789") == std::string::npos);
    const std::size_t index = field.empty() ? next++ : number ? static_cast<std::size_t>(std::stoi(field)) : 0;
    const Value* value = nullptr;
    if (number)
      value = index < given.positional.size() ? &given.positional[index] : nullptr;
    else if (field.find_first_of(":!.[{") != std::string::npos)
      fail("format() supports only names and numbers in braces");
    else
      value = find(given.named, field);
    if (value == nullptr) fail("format() has no argument for '{{{}}}'", field);
    const Text shown = to_text(heap, *value);
    heap.copy(shown);
    formatted.append(shown);
    at = end + 1;
  }
  return heap.string(std::move(formatted));
}

Value join_strings(Heap& heap, const Text& between, const Given& given) {
  Text joined;
  bool first = true;
  for (const Value& item : iterate(heap, *bind("join", given, {"iterable"}, 1)[0])) {
    if (item.text() == nullptr) fail("join() needs strings, not {}", item.type_name());
    heap.require(joined.size() + between.size() + item.text()->size());
    heap.copy(between);
    heap.copy(*item.text());
    if (!std::exchange(first, false)) joined.append(between);
    joined.append(*item.text());
  }
  return heap.string(std::move(joined));
}

Value search(Heap& heap, const Text& text, std::string_view name, const Given& given) {
  const std::string& part = string_argument(bind(name, given, {"sub"}, 1)[0], name).bytes();
  const bool right = name == "rfind" || name == "rindex";
  heap.step(text.size() / 16);
  if (right) heap.require(text.size() + part.size());
  std::size_t found =
      right ? find_part(heap, reversed(text.bytes()), reversed(part)) : find_part(heap, text.bytes(), part);
  if (right && found != std::string::npos) found = text.size() - found - part.size();
  if (found != std::string::npos) return Value::integer(characters_before(text, found));
  if (name == "index" || name == "rindex") fail("the substring is not found");
  return Value::integer(-1);
}

Value count(Heap& heap, const Text& text, const Given& given) {
  const Text& part = string_argument(bind("count", given, {"sub"}, 1)[0], "count");
  heap.step(text.size() / 16);
  if (part.empty()) return Value::integer(static_cast<std::int64_t>(count_characters(text.bytes())) + 1);
  std::int64_t number = 0;
  for (std::size_t at = find_part(heap, text.bytes(), part.bytes()); at != std::string::npos;
       at = find_part(heap, text.bytes(), part.bytes(), at + part.size())) {
    heap.step();
    ++number;
  }
  return Value::integer(number);
}

// isdigit(), isspace() and so on, of ASCII letters and digits; all but isascii() need a character.
Value is_all(const Text& text, std::string_view name) {
  const auto holds = [&](std::string_view character) {
    const char c = character[0];
    const bool digit = c >= '0' && c <= '9';
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (name == "isspace") return is_space(character);
    if (character.size() > 1) fail("{}() knows ASCII only", name);
    return name == "isalpha" ? letter : name == "isalnum" ? letter || digit : digit;
  };
  if (text.empty()) return Value::boolean(false);
  for (std::string_view rest = text.bytes(); !rest.empty(); rest.remove_prefix(character_size(rest)))
    if (!holds(rest.substr(0, character_size(rest)))) return Value::boolean(false);
  return Value::boolean(true);
}

Value call_on_string(Heap& heap, const Text& text, std::string_view name, const Given& given) {
  heap.step(text.size() / 64);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* characters = bind(name, given, {"chars"})[0];
    const bool any = characters != nullptr && !characters->is_none();
    const Range kept = strip(text.bytes(), any ? &string_argument(characters, name).bytes() : nullptr, name != "rstrip",
                             name != "lstrip");
    heap.step(text.size() - kept.size + (any ? characters->text()->size() : 0));
    return heap.string(text.substring(kept.from, kept.size));
  }
  if (name == "split" || name == "rsplit") return split(heap, text, given, name == "rsplit");
  if (name == "partition" || name == "rpartition") return partition(heap, text, given, name == "rpartition");
  if (name == "startswith" || name == "endswith") return has_end(text, name, given);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") return search(heap, text, name, given);
  if (name == "count") return count(heap, text, given);
  if (name == "join") return join_strings(heap, text, given);
  if (name == "format") return format(heap, text, given);
  if (name == "replace") {
    const auto bound = bind(name, given, {"old", "new", "count"}, 2);
    return heap.string(
        replace(heap, text, string_argument(bound[0], name), string_argument(bound[1], name), whole(bound[2], -1)));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string& part = string_argument(bind(name, given, {"part"}, 1)[0], name).bytes();
    const bool front = name == "removeprefix";
    const bool fits = front ? text.bytes().starts_with(part) : text.bytes().ends_with(part);
    return heap.string(text.substring(fits && front ? part.size() : 0, text.size() - (fits ? part.size() : 0)));
  }
  bind(name, given, {});
  heap.step(text.size() / 4);
  if (name == "upper") return heap.string(change_case(text, Case::kUpper));
  if (name == "lower") return heap.string(change_case(text, Case::kLower));
  if (name == "title") return heap.string(change_case(text, Case::kTitle));
  if (name == "capitalize") return heap.string(change_case(text, Case::kCapital));
  for (const std::string_view each : {"isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace"})
    if (name == each) return is_all(text, name);
  fail("{}() of a string is not supported", name);
}

Value call_on_list(Heap& heap, const Value& self, std::string_view name, const Given& given) {
  const std::vector<Value>& items = self.list()->items;
  if (name == "copy") return bind(name, given, {}), self;
  if (name != "index" && name != "count") fail("{}() would change a list, which templates cannot", name);
  const Value& item = *bind(name, given, {"value"}, 1)[0];
  std::int64_t number = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equals(heap, items[i], item)) continue;
    if (name == "index") return Value::integer(static_cast<std::int64_t>(i));
    ++number;
  }
  if (name == "index") fail("the value is not in the list");
  return Value::integer(number);
}

Value call_on_dict(Heap& heap, const Value& self, std::string_view name, const Given& given) {
  if (name == "get") {
    if (!given.named.empty()) fail("get() takes no named arguments");
    const auto bound = bind(name, given, {"key", "default"}, 1);
    const Value* found = find(heap, *self.dict(), *bound[0]);
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value::none();
  }
  if (name == "copy") return bind(name, given, {}), self;
  if (name != "keys" && name != "values" && name != "items")
    fail("{}() would change a dictionary, which templates cannot", name);
  bind(name, given, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->items)
    items.push_back(name == "keys" ? key : name == "values" ? value : heap.list({key, value}, Form::kTuple));
  heap.step(items.size());
  return heap.list(std::move(items), name == "keys" ? Form::kKeys : name == "values" ? Form::kValues : Form::kItems);
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.text() != nullptr) return has(kStringMethods, name);
  if (value.dict() != nullptr) return has(kDictMethods, name);
  if (value.list() == nullptr) return false;
  if (value.list()->form == Form::kList) return has(kListMethods, name);
  return (value.list()->form == Form::kTuple || value.list()->form == Form::kRange) &&
         (name == "index" || name == "count");
}

Value call_method(Heap& heap, const Value& self, std::string_view name, const Given& given) {
  if (self.text() != nullptr) return call_on_string(heap, *self.text(), name, given);
  if (self.dict() != nullptr) return call_on_dict(heap, self, name, given);
  if (self.list() != nullptr) return call_on_list(heap, self, name, given);
  // loop.cycle()
  if (given.positional.empty()) fail("loop.cycle() needs values");
  return given.positional[self.callable()->loop->index % given.positional.size()];
}

}  // namespace kvasir::jinja

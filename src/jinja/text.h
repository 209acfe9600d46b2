// Strings that know where each of their bytes comes from, and UTF-8 by characters.
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::jinja {

enum class Origin : std::uint8_t {
  kTemplate,  // written in the template, or computed without any string of the caller
  kCaller,    // from a variable of the caller, or computed from one
};

// A run of bytes with one origin, given by the offset where it ends. It starts where the run before it ends.
struct Run {
  std::size_t end;
  Origin origin;
};

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin) { append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // Runs in order, without empty ones; neighbours differ in origin.
  const std::vector<Run>& runs() const { return runs_; }

  // Returns kCaller if any byte is from the caller.
  Origin origin() const;

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  // Appends `size` bytes of `other` from `from` on. REQUIRES: they lie in `other`, which is not this.
  void append(const Text& other, std::size_t from, std::size_t size);
  Text substring(std::size_t from, std::size_t size) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

// Returns the length in bytes of the character at the start of `text`. A byte that is not part of valid UTF-8 counts as
// one character. REQUIRES: not empty.
std::size_t character_size(std::string_view text);
// Returns the bytes of the last character of a text that is not empty: the longest of up to four that is one.
std::size_t last_character_size(std::string_view text);
std::size_t count_characters(std::string_view text);
// Returns the offset in bytes of character `index`, or text.size() behind the last.
std::size_t character_offset(std::string_view text, std::size_t index);

// Returns the code point of one character; of an invalid byte, U+DC00 and the byte.
char32_t code_point(std::string_view character);
void append_utf8(std::string* text, char32_t code);

// Python's str.isspace() of one character.
bool is_space(std::string_view character);

// The range of `text` that str.strip() keeps.
struct Range {
  std::size_t from;
  std::size_t size;
};
// Strips the characters of `characters`, or white space where it is null.
Range strip(std::string_view text, const std::string* characters, bool left, bool right);

enum class Case { kUpper, kLower, kTitle, kCapital };
// str.upper(), lower(), title() or capitalize(), character by character; only "ß" grows, to "SS" or "Ss".
Text change_case(const Text& text, Case to);

// repr() of a string and of a float.
std::string python_quoted(std::string_view text);
std::string float_text(double value);

}  // namespace kvasir::jinja

#include "jinja/parse/lexer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>

#include "jinja/text.h"

namespace kvasir::jinja {
namespace {

constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "!"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_part(std::string_view character) {
  const char first = character[0];
  if (static_cast<unsigned char>(first) < 0x80)
    return first == '_' || is_digit(first) || (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
  const char32_t code = code_point(character);
  if (code >= 0xDC00 && code <= 0xDFFF) return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO;
}

std::string normalise_newlines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_and_tag();
    add(Token::Kind::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  // Counts on from the place asked for last, so that all tokens of a long line take linear time.
  Place place(std::size_t offset) {
    if (offset < counted_) counted_ = 0, reached_ = {};
    while (counted_ < offset) {
      const std::size_t size = character_size(rest(counted_));
      const bool ends_line = source_[counted_] == '\n';
      reached_ = ends_line ? Place{reached_.line + 1, 1} : Place{reached_.line, reached_.column + 1};
      counted_ += size;
    }
    return reached_;
  }
  [[noreturn]] void fail_at(std::size_t offset, std::string message) {
    throw PlacedFailure{place(offset), std::move(message)};
  }
  void add(Token::Kind kind, std::string text, std::size_t offset) {
    tokens_.push_back({kind, std::move(text), place(offset)});
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  std::string_view rest(std::size_t from) const { return std::string_view(source_).substr(from); }
  void skip_spaces() {
    while (at_ < source_.size() && is_space(rest().substr(0, character_size(rest())))) at_ += character_size(rest());
  }

  // Returns where the next tag starts, or the end of the source.
  std::size_t find_tag(std::size_t from) const {
    for (std::size_t found = source_.find('{', from); found != std::string::npos;
         found = source_.find('{', found + 1)) {
      const char next = found + 1 < source_.size() ? source_[found + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return found;
    }
    return source_.size();
  }

  // Adds the text from `from` to `tag`, less the white space that the tag with this sign takes away.
  void add_text(std::size_t from, std::size_t tag, char sign, bool block) {
    std::string_view text = std::string_view(source_).substr(from, tag - from);
    if (sign == '-') {
      text = text.substr(0, strip(text, nullptr, false, true).size);
    } else if (sign != '+' && block) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 without one
      if ((line > 0 || line_starts_) && strip(text.substr(line), nullptr, true, false).size == 0)
        text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text), from);
  }

  void text_and_tag() {
    const std::size_t from = at_;
    const std::size_t tag = find_tag(from);
    if (tag == source_.size()) {
      add_text(from, tag, '+', false);
      at_ = tag;
      return;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    char sign = '\0';
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) sign = source_[at_++];
    add_text(from, tag, sign, kind != '{');
    if (kind == '#') {
      comment(tag);
    } else if (kind == '%' && raw_begins()) {
      raw(tag);
    } else {
      add(kind == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "", tag);
      line_starts_ = false;
      inside(tag, kind == '{');
    }
    line_starts_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  // Ends a tag whose closing bracket is at at_, behind a sign, if there is one.
  void close(char sign, bool trims) {
    at_ += 2;
    if (sign == '-')
      skip_spaces();
    else if (sign != '+' && trims && at_ < source_.size() && source_[at_] == '\n')
      ++at_;
  }

  void comment(std::size_t tag) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(tag, "the comment has no end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end;
    close(sign, true);
  }

  // Consumes `word` and the end of its tag, which has started before at_; returns false if it is another tag.
  bool consume_word_tag(std::string_view word, bool trims) {
    const std::size_t before = at_;
    skip_spaces();
    if (rest().starts_with(word)) {
      at_ += word.size();
      skip_spaces();
      char sign = '\0';
      if (rest().starts_with("-") || (trims && rest().starts_with("+"))) sign = source_[at_++];
      if (rest().starts_with("%}")) {
        close(sign, trims);
        return true;
      }
    }
    at_ = before;
    return false;
  }
  bool raw_begins() { return consume_word_tag("raw", false); }

  void raw(std::size_t tag) {
    const std::size_t from = at_;
    line_starts_ = from > 0 && source_[from - 1] == '\n';
    for (std::size_t end = source_.find("{%", from); end != std::string::npos; end = source_.find("{%", end + 1)) {
      at_ = end + 2;
      char sign = '\0';
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) sign = source_[at_++];
      if (!consume_word_tag("endraw", true)) continue;
      add_text(from, end, sign, true);
      return;
    }
    fail_at(tag, "{% raw %} has no {% endraw %}");
  }

  void inside(std::size_t tag, bool output) {
    const std::string_view closing = output ? "}}" : "%}";
    std::vector<char> open;
    while (true) {
      skip_spaces();
      if (at_ == source_.size()) fail_at(tag, output ? "{{ has no }}" : "{% has no %}");
      if (open.empty()) {
        const char sign = source_[at_] == '-' || (source_[at_] == '+' && !output) ? source_[at_] : '\0';
        const std::size_t end = at_ + (sign != '\0');
        if (rest(end).starts_with(closing)) {
          add(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "", at_);
          at_ = end;
          close(sign, !output);
          return;
        }
      }
      const char c = source_[at_];
      if (is_digit(c))
        number();
      else if (c == '\'' || c == '"')
        string_literal();
      else if (is_name_part(rest().substr(0, character_size(rest()))))
        name();
      else
        add_operator(&open);
    }
  }

  void name() {
    const std::size_t from = at_;
    while (at_ < source_.size() && is_name_part(rest().substr(0, character_size(rest()))))
      at_ += character_size(rest());
    add(Token::Kind::kName, source_.substr(from, at_ - from), from);
  }

  void add_operator(std::vector<char>* open) {
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](std::string_view sign) { return rest().starts_with(sign); });
    if (found == kOperators.end() || *found == "!") fail_at(at_, "unexpected character");
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) fail_at(at_, std::string("unexpected '") + c + "'");
      open->pop_back();
    }
    add(Token::Kind::kOperator, std::string(*found), at_);
    at_ += found->size();
  }

  // Appends digits, where single underscores may stand between them.
  bool digits(std::string* text) {
    if (at_ == source_.size() || !is_digit(source_[at_])) return false;
    while (at_ < source_.size()) {
      const bool joins = source_[at_] == '_' && at_ + 1 < source_.size() && is_digit(source_[at_ + 1]);
      if (joins) ++at_;
      if (!is_digit(source_[at_])) break;
      *text += source_[at_++];
    }
    return true;
  }

  void number() {
    const std::size_t from = at_;
    std::string text;
    digits(&text);
    bool real = false;
    const std::size_t whole_end = at_;
    std::string fraction;
    if (rest().starts_with(".")) {
      ++at_;
      if (digits(&fraction)) {
        text += "." + fraction;
        real = true;
      } else {
        at_ = whole_end;
      }
    }
    const std::size_t fraction_end = at_;
    if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
      std::string exponent = "e";
      ++at_;
      if (rest().starts_with("+") || rest().starts_with("-")) exponent += source_[at_++];
      if (digits(&exponent)) {
        text += exponent;
        real = true;
      } else {
        at_ = fraction_end;
      }
    }
    add(real ? Token::Kind::kFloat : Token::Kind::kInteger, text, from);
  }

  std::optional<char32_t> escaped_code(std::size_t size, int base) {
    char32_t code = 0;
    for (std::size_t i = 0; i < size; ++i, ++at_) {
      if (at_ == source_.size()) return std::nullopt;
      const char c = source_[at_];
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      if (digit >= base) return std::nullopt;
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    return code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF) ? std::nullopt : std::optional(code);
  }

  void escape(std::string* text) {
    const std::size_t from = at_ - 1;
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at_];
    if (const std::size_t letter = kLetters.find(c); letter != std::string_view::npos) {
      *text += kMeanings[letter];
      ++at_;
    } else if (c == '\n') {
      ++at_;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ++at_;
      const auto code = escaped_code(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
      if (!code) fail_at(from, "malformed escape in a string");
      append_utf8(text, *code);
    } else if (c >= '0' && c <= '7') {
      std::size_t size = 1;
      while (size < 3 && at_ + size < source_.size() && source_[at_ + size] >= '0' && source_[at_ + size] <= '7')
        ++size;
      append_utf8(text, *escaped_code(size, 8));
    } else if (c == 'N') {
      fail_at(from, "characters by name are not supported");
    } else {
      *text += '\\';
    }
  }

  void string_literal() {
    const std::size_t from = at_;
    const char mark = source_[at_++];
    std::string text;
    while (true) {
      if (at_ == source_.size()) fail_at(from, "the string has no end");
      const char c = source_[at_++];
      if (c == mark) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (at_ == source_.size()) fail_at(from, "the string has no end");
      escape(&text);
    }
    add(Token::Kind::kString, text, from);
  }

  std::string source_;
  std::size_t at_ = 0;
  bool line_starts_ = true;  // the text at at_ starts a line
  std::size_t counted_ = 0;  // place() counted up to here
  Place reached_;            // and this is its place
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace kvasir::jinja

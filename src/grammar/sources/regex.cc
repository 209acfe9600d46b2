#include "grammar/sources/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/automata/char_set.h"
#include "text/utf8.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kLongestRegex = 64 << 10;
constexpr int kDeepestGroup = 200;
constexpr int kMostRepeats = 10'000;

class RegexParser {
 public:
  RegexParser(Builder& builder, std::string_view text, const RegexOptions& options)
      : builder_(builder), all_(text), rest_(text), options_(options) {}

  Result<Expr> parse() {
    KVASIR_RETURN_IF_ERROR(check_utf8(all_, 0, "the regular expression"));
    if (all_.size() > kLongestRegex)
      return exhausted("the regular expression has {} bytes; at most {} are allowed", all_.size(), kLongestRegex);
    KVASIR_ASSIGN_OR_RETURN(const Expr expr, alternatives(true));
    if (!rest_.empty()) return error("a ')' without a '('");
    return expr;
  }

 private:
  Status error(std::string_view what) const {
    return invalid_argument("the regular expression is wrong at byte {}: {}", all_.size() - rest_.size(), what);
  }
  Status refuse(std::string_view what) const {
    return unsupported("the regular expression has {} at byte {}, which cannot be enforced", what,
                       all_.size() - rest_.size());
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  Expr one_of(const CharSet& set) { return options_.character ? options_.character(set) : builder_.one_of(set); }
  Expr any_text() { return builder_.repeat(one_of({{0, kLastChar}}), 0, Builder::kUnbounded); }

  // `outer`: the alternatives of the whole expression, or of a group that is all of one.
  Result<Expr> alternatives(bool outer) {
    std::vector<Expr> all;
    do {
      KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), sequence(outer));
    } while (take("|"));
    return builder_.choice(all);
  }

  Result<Expr> sequence(bool outer) {
    std::vector<Expr> parts;
    const bool begins = outer && take("^");
    bool ends = false;
    if (outer && !begins && is_one_group()) {
      // Anchors within a group that is the whole alternative are those of its own alternatives.
      KVASIR_ASSIGN_OR_RETURN(parts.emplace_back(), group(true));
      return parts.back();
    }
    while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
      if (rest_.front() == '^') return refuse("an anchor '^' that does not begin an alternative");
      if (rest_.front() == '$') {
        const bool last = rest_.size() == 1 || rest_[1] == '|' || rest_[1] == ')';
        if (!outer || !last) return refuse("an anchor '$' that does not end an alternative");
        take("$");
        ends = true;
        break;
      }
      KVASIR_ASSIGN_OR_RETURN(const Expr part, atom());
      KVASIR_ASSIGN_OR_RETURN(parts.emplace_back(), repeated(part));
    }
    if (outer && !options_.whole) {
      if (!begins) parts.insert(parts.begin(), any_text());
      if (!ends) parts.push_back(any_text());
    }
    return builder_.sequence(parts);
  }

  // Whether the rest begins with a group that ends the expression.
  bool is_one_group() const {
    if (!rest_.starts_with('(')) return false;
    int depth = 0;
    bool in_class = false;
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      const char c = rest_[i];
      if (c == '\\') {
        ++i;
      } else if (in_class) {
        in_class = c != ']';
      } else if (c == '[') {
        in_class = true;
      } else if (c == '(') {
        ++depth;
      } else if (c == ')' && --depth == 0) {
        return i + 1 == rest_.size();
      }
    }
    return false;
  }

  Result<Expr> group(bool outer) {
    take("(");
    if (take("?")) {
      if (rest_.starts_with("=") || rest_.starts_with("!") || rest_.starts_with("<=") || rest_.starts_with("<!"))
        return refuse("a look-around");
      if (take("P<") || take("<")) {
        const std::size_t end = rest_.find('>');
        if (end == std::string_view::npos) return error("a group's name has no end");
        rest_.remove_prefix(end + 1);
      } else if (!take(":")) {
        return refuse("a flag or an extension '(?'");
      }
    }
    if (++depth_ > kDeepestGroup) return exhausted("the regular expression nests deeper than {} groups", kDeepestGroup);
    KVASIR_ASSIGN_OR_RETURN(const Expr inner, alternatives(outer));
    --depth_;
    if (!take(")")) return error("a '(' has no ')'");
    return inner;
  }

  Result<Expr> atom() {
    const char c = rest_.front();
    if (c == '(') return group(false);
    if (c == '[') {
      KVASIR_ASSIGN_OR_RETURN(const CharSet set, char_class());
      return one_of(set);
    }
    if (take(".")) return one_of(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    if (c == '*' || c == '+' || c == '?') return error("a repetition of nothing");
    if (c == '\\') {
      KVASIR_ASSIGN_OR_RETURN(const CharSet set, escape(false, false));
      return one_of(set);
    }
    const char32_t literal = take_char(rest_);
    return one_of({{literal, literal}});
  }

  // Reads {m}, {m,} or {m,n} behind "{". Returns false where the brace is a literal.
  bool counts(int& least, int& most) {
    std::string_view text = rest_.substr(1);
    const auto number = [&](int& value) {
      std::size_t digits = 0;
      value = 0;
      for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits)
        value = std::min(value * 10 + (text[digits] - '0'), kMostRepeats + 1);
      text.remove_prefix(digits);
      return digits > 0;
    };
    if (!number(least)) return false;
    most = least;
    if (text.starts_with(',')) {
      text.remove_prefix(1);
      if (!number(most)) most = Builder::kUnbounded;
    }
    if (!text.starts_with('}')) return false;
    rest_ = text.substr(1);
    return true;
  }

  Result<Expr> repeated(Expr part) {
    while (!rest_.empty()) {
      int least = 0, most = Builder::kUnbounded;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (rest_.front() == '{') {
        if (rest_.starts_with("{,")) return refuse("a repetition '{,' without its least count");
        if (!counts(least, most)) break;
        if (least > kMostRepeats || most > kMostRepeats)
          return exhausted("the regular expression repeats something more than {} times", kMostRepeats);
        if (most != Builder::kUnbounded && most < least) return error("a repetition's limits are reversed");
      } else if (!take("*")) {
        break;
      }
      if (rest_.starts_with('+')) return refuse("a possessive repetition");
      take("?");  // lazy: the same texts match
      part = builder_.repeat(part, least, most);
    }
    return part;
  }

  Result<char32_t> hex(std::size_t digits, bool braces) {
    if (braces && take("{")) {
      const std::size_t end = rest_.find('}');
      if (end == std::string_view::npos || end == 0 || end > 6) return error("an escape has no hexadecimal number");
      KVASIR_ASSIGN_OR_RETURN(const char32_t value, hex(end, false));
      take("}");
      if (value > kLastChar) return error("an escape is beyond U+10FFFF");
      return value;
    }
    const std::optional<char32_t> value = take_hex(rest_, digits);
    if (!value) return error("an escape has no hexadecimal number");
    return *value;
  }

  // Reads \u with a pair of surrogates as one character.
  Result<char32_t> unicode_escape() {
    KVASIR_ASSIGN_OR_RETURN(const char32_t high, hex(4, true));
    if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
    KVASIR_ASSIGN_OR_RETURN(const char32_t low, hex(4, false));
    if (low < 0xDC00 || low > 0xDFFF) return error("an escape has half of a surrogate pair");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  // Returns what \d, \w or \s stand for: what every engine agrees on (ASCII), or what some engine takes for it.
  static CharSet shorthand(char name, bool widest) {
    CharSet set = name == 'd'   ? CharSet{{'0', '9'}}
                  : name == 'w' ? CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
                                : CharSet{{'\t', '\r'}, {' ', ' '}};
    if (!widest) return set;
    if (name == 'd') add(set, unicode_category("Nd"));
    if (name == 'w')
      for (const char* category : {"L", "M", "N", "Pc"}) add(set, unicode_category(category));
    if (name == 's') {
      add(set, unicode_category("Z"));
      add(set, {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}});
    }
    return set;
  }

  // Reads an escape, as the set of characters that it stands for. `negated`: the set's complement is meant.
  Result<CharSet> escape(bool in_class, bool negated) {
    take("\\");
    if (rest_.empty()) return error("a '\\' at the end");
    const char c = rest_.front();
    if (c >= '1' && c <= '9') return refuse("a back reference");
    if (!in_class && (c == 'b' || c == 'B')) return refuse("a word boundary");
    if (c == 'A' || c == 'Z' || c == 'z' || c == 'G' || c == 'k') return refuse("an escape that is no character");
    const char32_t literal = take_char(rest_);
    switch (literal) {
      case 'd':
      case 'w':
      case 's': return shorthand(c, negated);
      case 'D': return complement(shorthand('d', !negated));
      case 'W': return complement(shorthand('w', !negated));
      case 'S': return complement(shorthand('s', !negated));
      case 'p':
      case 'P': {
        const std::size_t end = rest_.find('}');
        if (!rest_.starts_with('{') || end == std::string_view::npos) return error("\\p needs a category in braces");
        const CharSet set = unicode_category(rest_.substr(1, end - 1));
        if (set.empty()) return refuse("a property of characters other than a general category");
        rest_.remove_prefix(end + 1);
        return literal == 'p' ? set : complement(set);
      }
      case 'x': {
        KVASIR_ASSIGN_OR_RETURN(const char32_t value, hex(2, true));
        return CharSet{{value, value}};
      }
      case 'u': {
        KVASIR_ASSIGN_OR_RETURN(const char32_t value, unicode_escape());
        return CharSet{{value, value}};
      }
      default: break;
    }
    static constexpr std::pair<char32_t, char32_t> kEscapes[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'},
                                                                 {'v', '\v'}, {'0', 0},    {'b', '\b'}};
    for (const auto& [name, value] : kEscapes)
      if (name == literal) return CharSet{{value, value}};
    if ((literal >= 'a' && literal <= 'z') || (literal >= 'A' && literal <= 'Z'))
      return refuse("an escape of a letter that has no meaning");
    return CharSet{{literal, literal}};
  }

  // Reads a character of a class, or an escape there. REQUIRES: something is left.
  Result<CharSet> class_member(bool negated) {
    if (rest_.front() == '\\') return escape(true, negated);
    const char32_t c = take_char(rest_);
    return CharSet{{c, c}};
  }

  Result<CharSet> char_class() {
    take("[");
    const bool negated = take("^");
    CharSet set;
    for (bool first = true;; first = false) {
      if (rest_.empty()) return error("a '[' has no ']'");
      if (!first && take("]")) break;
      if (first && take("]")) {
        if (!negated) return error("an empty class");
        break;
      }
      if (rest_.starts_with("[:")) return refuse("a POSIX class");
      KVASIR_ASSIGN_OR_RETURN(CharSet one, class_member(negated));
      const bool single = one.size() == 1 && one.front().first == one.front().last;
      if (single && rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') {
        take("-");
        KVASIR_ASSIGN_OR_RETURN(const CharSet last, class_member(negated));
        if (last.size() != 1 || last.front().first != last.front().last || last.front().first < one.front().first)
          return error("a range of characters that is reversed or has no end");
        one.front().last = last.front().last;
      }
      add(set, one);
    }
    return negated ? complement(set) : set;
  }

  Builder& builder_;
  std::string_view all_;
  std::string_view rest_;
  const RegexOptions& options_;
  int depth_ = 0;
};

}  // namespace

Result<Expr> parse_regex(Builder& builder, std::string_view expression, const RegexOptions& options) {
  return RegexParser(builder, expression, options).parse();
}

}  // namespace kvasir::grammar

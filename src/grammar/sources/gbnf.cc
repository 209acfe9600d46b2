#include "grammar/sources/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/automata/char_set.h"
#include "text/utf8.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kLongestGrammar = 1 << 20;
constexpr int kDeepestParentheses = 200;
constexpr int kMostCount = 10'000;

class GbnfParser {
 public:
  GbnfParser(Builder& builder, std::string_view text) : builder_(builder), all_(text), rest_(text) {}

  Result<Rule> parse() {
    KVASIR_RETURN_IF_ERROR(check_utf8(all_, 0, "the grammar"));
    if (all_.size() > kLongestGrammar)
      return exhausted("the grammar has {} bytes; at most {} are allowed", all_.size(), kLongestGrammar);
    skip(true);
    while (!rest_.empty()) KVASIR_RETURN_IF_ERROR(rule());
    for (const auto& [name, rule] : rules_)
      if (!rule.defined) return invalid_argument("the grammar uses the rule '{}' but does not define it", name);
    const auto root = rules_.find("root");
    if (root == rules_.end()) return invalid_argument("the grammar has no rule 'root', whose texts it would match");
    return root->second.rule;
  }

 private:
  struct Known {
    Rule rule;
    bool defined = false;
  };

  Status error(std::string_view what) const {
    const std::string_view before = all_.substr(0, all_.size() - rest_.size());
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t column =
        before.size() - (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
    return invalid_argument("the grammar is wrong in line {}, column {}: {}", line, column, what);
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  // Skips white space and comments; line breaks only where a rule goes on behind them.
  static void skip(std::string_view& text, bool lines) {
    while (!text.empty()) {
      const char c = text.front();
      if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        text.remove_prefix(1);
      } else if (c == '#') {
        text.remove_prefix(std::min(text.find('\n'), text.size()));
      } else {
        break;
      }
    }
  }
  void skip(bool lines) { skip(rest_, lines); }

  static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  Result<std::string_view> name() {
    std::size_t size = 0;
    while (size < rest_.size() && is_name_char(rest_[size])) ++size;
    if (size == 0) return error("a rule's name is expected");
    const std::string_view name = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return name;
  }
  Known& known(std::string_view name) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    return rules_.emplace(std::string(name), Known{builder_.declare(name), false}).first->second;
  }

  Status rule() {
    KVASIR_ASSIGN_OR_RETURN(const std::string_view called, name());
    skip(false);
    if (!take("::=")) return error("'::=' is expected behind a rule's name");
    if (known(called).defined) return error("this rule is defined a second time");
    known(called).defined = true;
    skip(true);
    KVASIR_ASSIGN_OR_RETURN(const Expr body, alternatives(false));
    builder_.define(known(called).rule, body);
    if (!rest_.empty() && rest_.front() != '\n' && rest_.front() != '\r')
      return error("the end of the line is expected");
    skip(true);
    return {};
  }

  Result<Expr> alternatives(bool nested) {
    std::vector<Expr> all;
    do {
      skip(true);
      KVASIR_ASSIGN_OR_RETURN(all.emplace_back(), sequence(nested));
    } while (take("|"));
    return builder_.choice(all);
  }

  Result<Expr> sequence(bool nested) {
    std::vector<Expr> parts;
    while (true) {
      skip(nested);
      if (!nested && continues_below()) skip(true);
      if (rest_.empty()) break;
      const char c = rest_.front();
      if (c == '|' || c == ')' || c == '\n' || c == '\r') break;
      KVASIR_ASSIGN_OR_RETURN(const Expr part, element());
      KVASIR_ASSIGN_OR_RETURN(parts.emplace_back(), repeated(part));
    }
    return builder_.sequence(parts);
  }

  // Whether the next line that is not empty begins with "|": an alternative of the same rule.
  bool continues_below() const {
    std::string_view ahead = rest_;
    skip(ahead, true);
    return ahead.size() < rest_.size() && ahead.starts_with('|');
  }

  Result<Expr> element() {
    const char c = rest_.front();
    if (c == '"') return literal();
    if (c == '[') return char_class();
    if (c == '<') {
      const std::size_t end = rest_.find('>', rest_.starts_with("<|") ? rest_.find("|>") : 1);
      if (end == std::string_view::npos) return error("a token's name has no '>'");
      const std::string_view called = rest_.substr(0, end + 1);
      if (called.starts_with("<[")) return unsupported("the grammar names a token by number, which is not supported");
      rest_.remove_prefix(end + 1);
      return builder_.token(called);
    }
    if (c == '!') return unsupported("the grammar has a negated token, which is not supported");
    if (take(".")) return builder_.any_char();
    if (take("(")) {
      if (++depth_ > kDeepestParentheses)
        return exhausted("the grammar nests deeper than {} parentheses", kDeepestParentheses);
      KVASIR_ASSIGN_OR_RETURN(const Expr inner, alternatives(true));
      --depth_;
      skip(true);
      if (!take(")")) return error("a '(' has no ')'");
      return inner;
    }
    KVASIR_ASSIGN_OR_RETURN(const std::string_view called, name());
    return builder_.call(known(called).rule);
  }

  Result<Expr> repeated(Expr part) {
    while (!rest_.empty()) {
      int least = 0, most = Builder::kUnbounded;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (take("{")) {
        KVASIR_RETURN_IF_ERROR(counts(least, most));
      } else if (!take("*")) {
        break;
      }
      part = builder_.repeat(part, least, most);
    }
    return part;
  }

  Result<int> count() {
    skip(true);
    int value = 0;
    std::size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits)
      value = std::min(value * 10 + (rest_[digits] - '0'), kMostCount + 1);
    if (digits == 0) return error("a number of repetitions is expected");
    if (value > kMostCount) return exhausted("the grammar repeats something more than {} times", kMostCount);
    rest_.remove_prefix(digits);
    skip(true);
    return value;
  }
  Status counts(int& least, int& most) {
    skip(true);
    if (!rest_.starts_with(',')) {
      KVASIR_ASSIGN_OR_RETURN(least, count());
    }
    most = least;
    if (take(",")) {
      skip(true);
      most = Builder::kUnbounded;
      if (!rest_.starts_with('}')) {
        KVASIR_ASSIGN_OR_RETURN(most, count());
      }
    }
    if (!take("}")) return error("a '{' has no '}'");
    if (most != Builder::kUnbounded && most < least) return error("a repetition's limits are reversed");
    return {};
  }

  // Reads one character of a literal or a class, possibly escaped.
  Result<char32_t> character() {
    if (!take("\\")) return take_char(rest_);
    if (rest_.empty()) return error("a '\\' at the end");
    const char32_t c = take_char(rest_);
    static constexpr std::pair<char32_t, char32_t> kEscapes[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}};
    for (const auto& [name, value] : kEscapes)
      if (name == c) return value;
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (std::string_view("\"\\[]-^").find(static_cast<char>(c)) == std::string_view::npos || c > 0x7F)
        return error("an unknown escape");
      return c;
    }
    const std::optional<char32_t> value = take_hex(rest_, digits);
    if (!value) return error("an escape has too few hexadecimal digits");
    if (*value > kLastChar) return error("an escape is beyond U+10FFFF");
    return *value;
  }

  Result<Expr> literal() {
    take("\"");
    std::vector<Expr> parts;
    while (!take("\"")) {
      if (rest_.empty() || rest_.front() == '\n') return error("a literal has no closing '\"'");
      KVASIR_ASSIGN_OR_RETURN(const char32_t c, character());
      parts.push_back(builder_.one_of(std::array{CharRange{c, c}}));
    }
    return builder_.sequence(parts);
  }

  Result<Expr> char_class() {
    take("[");
    const bool negated = take("^");
    CharSet set;
    while (!take("]")) {
      if (rest_.empty() || rest_.front() == '\n') return error("a '[' has no ']'");
      KVASIR_ASSIGN_OR_RETURN(const char32_t first, character());
      char32_t last = first;
      if (rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') {
        take("-");
        KVASIR_ASSIGN_OR_RETURN(last, character());
      }
      if (last < first) return error("a range of characters is reversed");
      set.push_back({first, last});
    }
    return builder_.one_of(negated ? complement(set) : set);
  }

  Builder& builder_;
  std::string_view all_;
  std::string_view rest_;
  std::map<std::string, Known, std::less<>> rules_;
  int depth_ = 0;
};

}  // namespace

Result<Rule> parse_gbnf(Builder& builder, std::string_view text) {
  return GbnfParser(builder, text).parse();
}

}  // namespace kvasir::grammar

#include "chat/template_lexer.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_name(std::string_view text) {
  return !text.empty() && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

void strip_right(std::string_view* text, std::string_view characters) {
  text->remove_suffix(text->size() - (text->find_last_not_of(characters) + 1));
}

// Reads a template from left to right.
class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), rest_(source_) {}

  // Returns false if the source is not Jinja.
  bool read(std::vector<TemplateItem>* items) {
    while (!rest_.empty()) {
      const std::size_t at = find_tag();
      read_text(rest_.substr(0, at), items);
      rest_.remove_prefix(std::min(at, rest_.size()));
      if (!rest_.empty() && !read_tag(items)) return false;
    }
    return true;
  }

 private:
  std::size_t find_tag() const {
    for (std::size_t at = rest_.find('{'); at != std::string_view::npos; at = rest_.find('{', at + 1))
      if (at + 1 < rest_.size() && (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#')) return at;
    return rest_.size();
  }

  void read_text(std::string_view text, std::vector<TemplateItem>* items) {
    if (strip_left_) text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
    const std::string_view tag = rest_.substr(std::min(find_tag(), rest_.size()));
    const char control = tag.size() > 2 ? tag[2] : ' ';
    if (tag.size() > 1 && control == '-') {
      strip_right(&text, kWhiteSpace);
    } else if (tag.size() > 1 && tag[1] != '{' && control != '+') {
      strip_indent(&text);
    }
    strip_left_ = false;
    if (!text.empty()) items->push_back({false, {{TemplateToken::Kind::kLiteral, std::string(text)}}});
  }

  // Removes blanks between the start of a line and a tag.
  void strip_indent(std::string_view* text) const {
    const std::size_t newline = text->rfind('\n');
    if (newline == std::string_view::npos && !line_starts_) return;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (text->find_first_not_of(" \t", line) == std::string_view::npos) *text = text->substr(0, line);
  }

  // REQUIRES: rest_ starts with a tag.
  bool read_tag(std::vector<TemplateItem>* items) {
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    if (kind == '#') return skip_comment();
    if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) rest_.remove_prefix(1);
    TemplateItem item{kind == '%', {}};
    const std::string_view end = kind == '%' ? "%}" : "}}";
    int depth = 0;  // of braces: those of a mapping do not end the tag
    for (;;) {
      rest_.remove_prefix(std::min(rest_.find_first_not_of(kWhiteSpace), rest_.size()));
      if (rest_.empty()) return false;
      if (depth == 0 && end_tag(end)) break;
      if (rest_[0] == '{') ++depth;
      if (rest_[0] == '}') --depth;
      if (!read_token(&item.tokens)) return false;
    }
    items->push_back(std::move(item));
    return true;
  }

  bool skip_comment() {
    const std::size_t at = rest_.find("#}");
    if (at == std::string_view::npos) return false;
    const bool dash = at > 0 && rest_[at - 1] == '-';
    rest_.remove_prefix(at);
    if (dash) strip_left_ = true;
    return finish_tag(true);
  }

  bool end_tag(std::string_view end) {
    std::string_view rest = rest_;
    const bool control = rest[0] == '-' || (rest[0] == '+' && end == "%}");
    if (control) rest.remove_prefix(1);
    if (!rest.starts_with(end)) return false;
    strip_left_ = control && rest_[0] == '-';
    const bool keep = control && rest_[0] == '+';
    rest_ = rest;
    return finish_tag(end == "%}" && !keep);
  }

  bool finish_tag(bool trim) {
    rest_.remove_prefix(2);
    line_starts_ = false;
    if (trim && rest_.starts_with('\n')) {
      rest_.remove_prefix(1);
      line_starts_ = true;
    }
    return true;
  }

  bool read_token(TemplateTokens* tokens) {
    const char first = rest_[0];
    if (first == '\'' || first == '"') return read_literal(tokens);
    std::size_t size = 1;
    TemplateToken::Kind kind = TemplateToken::Kind::kSign;
    if (is_letter(first)) {
      kind = TemplateToken::Kind::kWord;
      while (size < rest_.size() && (is_letter(rest_[size]) || is_digit(rest_[size]))) ++size;
    } else if (is_digit(first)) {
      kind = TemplateToken::Kind::kNumber;
      while (size < rest_.size() && is_digit(rest_[size])) ++size;
    } else if (rest_.size() > 1 && rest_[1] == '=' && std::string_view("=!<>").find(first) != std::string_view::npos) {
      size = 2;
    }
    tokens->push_back({kind, std::string(rest_.substr(0, size))});
    rest_.remove_prefix(size);
    return true;
  }

  bool read_literal(TemplateTokens* tokens) {
    const char quote = rest_[0];
    std::string text;
    std::size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] != '\\') {
        text += rest_[at];
        continue;
      }
      if (++at == rest_.size()) return false;
      static constexpr std::string_view kEscapes = "ntr\\'\"";
      static constexpr std::string_view kMeant = "\n\t\r\\'\"";
      const std::size_t escape = kEscapes.find(rest_[at]);
      if (escape == std::string_view::npos) return false;
      text += kMeant[escape];
    }
    if (at == rest_.size()) return false;
    rest_.remove_prefix(at + 1);
    tokens->push_back({TemplateToken::Kind::kLiteral, std::move(text)});
    return true;
  }

  std::string source_;
  std::string_view rest_;
  bool strip_left_ = false;
  bool line_starts_ = true;
};

// Writes m['role'] as m.role, and a name with its attributes as one word.
TemplateTokens join_words(TemplateTokens tokens) {
  TemplateTokens joined;
  const auto reach = [&](std::string name) {
    if (!joined.empty() && joined.back().kind == TemplateToken::Kind::kWord) {
      joined.back().text += "." + name;
    } else {
      joined.push_back({TemplateToken::Kind::kWord, "." + std::move(name)});
    }
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool after_value = !joined.empty() && (joined.back().kind == TemplateToken::Kind::kWord ||
                                                 joined.back().is_sign("]") || joined.back().is_sign(")"));
    if (tokens[i].is_sign(".") && i + 1 < tokens.size() && tokens[i + 1].kind == TemplateToken::Kind::kWord) {
      reach(std::move(tokens[++i].text));
    } else if (after_value && tokens[i].is_sign("[") && i + 2 < tokens.size() &&
               tokens[i + 1].kind == TemplateToken::Kind::kLiteral && is_name(tokens[i + 1].text) &&
               tokens[i + 2].is_sign("]")) {
      reach(std::move(tokens[i + 1].text));
      i += 2;
    } else {
      joined.push_back(std::move(tokens[i]));
    }
  }
  return joined;
}

std::string quoted(std::string_view literal) {
  std::string text = "'";
  for (const char c : literal) {
    if (c == '\'' || c == '\\') text += '\\';
    text += c;
  }
  return text + "'";
}

// Normalises line ends as Jinja does, and removes the one at the end of the source.
std::string unix_lines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

bool lex_template(std::string_view source, std::vector<TemplateItem>* items) {
  if (!Lexer(unix_lines(source)).read(items)) return false;
  for (TemplateItem& item : *items) item.tokens = join_words(std::move(item.tokens));
  return true;
}

std::string text_of(const TemplateTokens& tokens) {
  using Kind = TemplateToken::Kind;
  std::string text;
  Kind last = Kind::kSign;
  for (const TemplateToken& token : tokens) {
    if (token.kind != Kind::kSign && last != Kind::kSign && !token.text.starts_with('.')) text += ' ';
    text += token.kind == Kind::kLiteral ? quoted(token.text) : token.text;
    last = token.kind;
  }
  return text;
}

}  // namespace kvasir

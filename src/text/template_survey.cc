#include "text/template_survey.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 18;
constexpr std::string_view kSpaces = " \t\n\r\f\v";

struct Token {
  enum class Kind { kWord, kNumber, kLiteral, kSign, kCode };  // kCode: canonical text of several
  Kind kind;
  std::string text;

  bool is_sign(std::string_view sign) const { return kind == Kind::kSign && text == sign; }
};

using Tokens = std::vector<Token>;

struct Item {
  bool statement;  // or output
  Tokens tokens;
};

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

  // False where the source is no Jinja.
  bool read(std::vector<Item>* items) {
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

  void read_text(std::string_view text, std::vector<Item>* items) {
    if (strip_left_) text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    const std::string_view tag = rest_.substr(std::min(find_tag(), rest_.size()));
    const char control = tag.size() > 2 ? tag[2] : ' ';
    if (tag.size() > 1 && control == '-') {
      strip_right(&text, kSpaces);
    } else if (tag.size() > 1 && tag[1] != '{' && control != '+') {
      strip_indent(&text);
    }
    strip_left_ = false;
    if (!text.empty()) items->push_back({false, {{Token::Kind::kLiteral, std::string(text)}}});
  }

  // What stands between the start of a line and a tag goes, if it is blank.
  void strip_indent(std::string_view* text) const {
    const std::size_t newline = text->rfind('\n');
    if (newline == std::string_view::npos && !line_starts_) return;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (text->find_first_not_of(" \t", line) == std::string_view::npos) *text = text->substr(0, line);
  }

  // REQUIRES: rest_ starts with a tag.
  bool read_tag(std::vector<Item>* items) {
    const char kind = rest_[1];
    rest_.remove_prefix(2);
    if (kind == '#') return skip_comment();
    if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) rest_.remove_prefix(1);
    Item item{kind == '%', {}};
    const std::string_view end = kind == '%' ? "%}" : "}}";
    int depth = 0;  // of braces, so that those of a mapping end no tag
    for (;;) {
      rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpaces), rest_.size()));
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

  bool read_token(Tokens* tokens) {
    const char first = rest_[0];
    if (first == '\'' || first == '"') return read_literal(tokens);
    std::size_t size = 1;
    Token::Kind kind = Token::Kind::kSign;
    if (is_letter(first)) {
      kind = Token::Kind::kWord;
      while (size < rest_.size() && (is_letter(rest_[size]) || is_digit(rest_[size]))) ++size;
    } else if (is_digit(first)) {
      kind = Token::Kind::kNumber;
      while (size < rest_.size() && is_digit(rest_[size])) ++size;
    } else if (rest_.size() > 1 && rest_[1] == '=' && std::string_view("=!<>").find(first) != std::string_view::npos) {
      size = 2;
    }
    tokens->push_back({kind, std::string(rest_.substr(0, size))});
    rest_.remove_prefix(size);
    return true;
  }

  bool read_literal(Tokens* tokens) {
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
    tokens->push_back({Token::Kind::kLiteral, std::move(text)});
    return true;
  }

  std::string source_;
  std::string_view rest_;
  bool strip_left_ = false;
  bool line_starts_ = true;
};

// m['role'] is m.role, and what is reached through a name is one word with it.
Tokens join_words(Tokens tokens) {
  Tokens joined;
  const auto reach = [&](std::string name) {
    if (!joined.empty() && joined.back().kind == Token::Kind::kWord) {
      joined.back().text += "." + name;
    } else {
      joined.push_back({Token::Kind::kWord, "." + std::move(name)});
    }
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool after_value = !joined.empty() && (joined.back().kind == Token::Kind::kWord ||
                                                 joined.back().is_sign("]") || joined.back().is_sign(")"));
    if (tokens[i].is_sign(".") && i + 1 < tokens.size() && tokens[i + 1].kind == Token::Kind::kWord) {
      reach(std::move(tokens[++i].text));
    } else if (after_value && tokens[i].is_sign("[") && i + 2 < tokens.size() &&
               tokens[i + 1].kind == Token::Kind::kLiteral && is_name(tokens[i + 1].text) &&
               tokens[i + 2].is_sign("]")) {
      reach(std::move(tokens[i + 1].text));
      i += 2;
    } else {
      joined.push_back(std::move(tokens[i]));
    }
  }
  return joined;
}

// 'a'+'b' is 'ab', unless a filter or a method takes the second alone.
Tokens join_literals(Tokens tokens) {
  Tokens joined;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t n = joined.size();
    const bool taken = i + 1 < tokens.size() && (tokens[i + 1].is_sign("|") || tokens[i + 1].text.starts_with('.'));
    if (tokens[i].kind == Token::Kind::kLiteral && !taken && n >= 2 && joined[n - 1].is_sign("+") &&
        joined[n - 2].kind == Token::Kind::kLiteral) {
      joined.pop_back();
      joined.back().text += tokens[i].text;
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

std::string text_of(const Tokens& tokens) {
  using Kind = Token::Kind;
  std::string text;
  Kind last = Kind::kSign;
  for (const Token& token : tokens) {
    if (token.kind != Kind::kSign && last != Kind::kSign && !token.text.starts_with('.')) text += ' ';
    text += token.kind == Kind::kLiteral ? quoted(token.text) : token.text;
    last = token.kind;
  }
  return text;
}

// What a conversation of system, user and assistant messages leaves undefined.
bool is_undefined(std::string_view name) {
  static constexpr std::array<std::string_view, 12> kUndefined = {"tools",
                                                                  "custom_tools",
                                                                  "builtin_tools",
                                                                  "tools_in_user_message",
                                                                  "xml_tools",
                                                                  "tool_choice",
                                                                  "documents",
                                                                  "date_string",
                                                                  "controls",
                                                                  "message.tool_calls",
                                                                  "message.tool_call_id",
                                                                  "message.reasoning_content"};
  return std::find(kUndefined.begin(), kUndefined.end(), name) != kUndefined.end();
}

bool is_defined(std::string_view name) {
  static constexpr std::array<std::string_view, 7> kDefined = {
      "messages", "message.role", "message.content", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"};
  return std::find(kDefined.begin(), kDefined.end(), name) != kDefined.end();
}

enum class Verdict { kNever, kAlways, kOpen };

Verdict judge(std::string_view term) {
  static constexpr std::array<std::string_view, 14> kNever = {"tools is not none",
                                                              "ns.is_tool",
                                                              "'tool_calls' in message",
                                                              "message.role=='tool'",
                                                              "message.role=='tools'",
                                                              "message.role=='tool_results'",
                                                              "message.role=='ipython'",
                                                              "message.content is none",
                                                              "message.content is not string",
                                                              "message.reasoning_content is string",
                                                              "enable_thinking is defined",
                                                              "enable_thinking is false",
                                                              "enable_thinking is true",
                                                              "messages is not defined"};
  static constexpr std::array<std::string_view, 5> kAlways = {"tools is none", "messages", "message.content is string",
                                                              "message.content is not none",
                                                              "enable_thinking is not defined"};
  if (std::find(kNever.begin(), kNever.end(), term) != kNever.end()) return Verdict::kNever;
  if (std::find(kAlways.begin(), kAlways.end(), term) != kAlways.end()) return Verdict::kAlways;
  if (is_undefined(term)) return Verdict::kNever;
  for (const bool denied : {true, false}) {
    const std::string_view end = denied ? " is not defined" : " is defined";
    if (!term.ends_with(end)) continue;
    const std::string_view name = term.substr(0, term.size() - end.size());
    if (is_undefined(name)) return denied ? Verdict::kAlways : Verdict::kNever;
    if (is_defined(name)) return denied ? Verdict::kNever : Verdict::kAlways;
    break;
  }
  return Verdict::kOpen;
}

// A condition, less what is known of it.
struct Condition {
  Verdict verdict = Verdict::kOpen;
  std::string text;
  std::vector<std::string> alternatives;  // of `text`
  bool compound = false;                  // several terms
};

class ConditionReader {
 public:
  explicit ConditionReader(Tokens tokens) : tokens_(std::move(tokens)) {}

  Condition read() {
    Condition condition = read_either();
    // What was not understood is left as it stands.
    if (at_ != tokens_.size()) condition = {Verdict::kOpen, text_of(tokens_), {}, false};
    return condition;
  }

 private:
  bool take(std::string_view word) {
    if (at_ == tokens_.size() || tokens_[at_].kind == Token::Kind::kLiteral || tokens_[at_].text != word) return false;
    ++at_;
    return true;
  }

  Condition read_either() {
    Condition either{Verdict::kNever, {}, {}, false};
    do {
      Condition both = read_both();
      if (both.verdict == Verdict::kAlways) either.verdict = Verdict::kAlways;
      if (both.verdict != Verdict::kOpen) continue;
      if (either.verdict == Verdict::kNever) either.verdict = Verdict::kOpen;
      either.compound |= both.compound || !either.text.empty();
      either.text += (either.text.empty() ? "" : " or ") + both.text;
      either.alternatives.push_back(std::move(both.text));
    } while (take("or"));
    return either;
  }

  Condition read_both() {
    Condition both{Verdict::kAlways, {}, {}, false};
    do {
      Condition term = read_term();
      if (term.verdict == Verdict::kNever) both.verdict = Verdict::kNever;
      if (term.verdict != Verdict::kOpen) continue;
      if (both.verdict == Verdict::kAlways) both.verdict = Verdict::kOpen;
      both.compound |= term.compound || !both.text.empty();
      both.text += both.text.empty() ? "" : " and ";
      both.text += term.alternatives.size() > 1 ? "(" + term.text + ")" : term.text;
    } while (take("and"));
    return both;
  }

  Condition read_term() {
    if (depth_ < kDeepest && take("not")) {
      ++depth_;
      Condition denied = read_term();
      --depth_;
      if (denied.verdict != Verdict::kOpen) {
        denied.verdict = denied.verdict == Verdict::kNever ? Verdict::kAlways : Verdict::kNever;
      } else {
        denied.text = denied.compound ? "not(" + denied.text + ")" : "not " + denied.text;
      }
      denied.alternatives.clear();
      denied.compound = false;
      return denied;
    }
    const std::size_t begin = at_;
    if (depth_ < kDeepest && take("(")) {
      ++depth_;
      Condition group = read_either();
      --depth_;
      if (take(")") && at_end_of_term()) return group;
      at_ = begin;  // the bracket belongs to a comparison
    }
    int open = 0;
    for (; at_ < tokens_.size() && (open > 0 || !at_end_of_term()); ++at_)
      open += (tokens_[at_].is_sign("(") ? 1 : 0) - (tokens_[at_].is_sign(")") ? 1 : 0);
    const std::string text = text_of(
        {tokens_.begin() + static_cast<std::ptrdiff_t>(begin), tokens_.begin() + static_cast<std::ptrdiff_t>(at_)});
    return {judge(text), text, {}, false};
  }

  bool at_end_of_term() const {
    if (at_ == tokens_.size() || tokens_[at_].is_sign(")")) return true;
    return tokens_[at_].kind == Token::Kind::kWord && (tokens_[at_].text == "and" || tokens_[at_].text == "or");
  }

  static constexpr int kDeepest = 8;  // a bracket may be read twice

  Tokens tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Takes the branches that are reached.
class Pruner {
 public:
  // False where branches do not match.
  bool run(std::vector<Item> items, std::vector<Item>* live) {
    for (Item& item : items) {
      const std::string word = item.statement && !item.tokens.empty() ? item.tokens[0].text : "";
      bool keep = !dead_;
      if (word == "if" || word == "elif") {
        if (word == "if") frames_.push_back({true, dead_, false, false, {}});
        if (frames_.empty() || !frames_.back().branches) return false;
        keep = enter(&item);
      } else if (word == "else") {
        if (frames_.empty()) return false;
        Frame& frame = frames_.back();
        dead_ = frame.outer_dead || frame.settled;
        keep = !dead_ && (!frame.branches || frame.opened);
      } else if (word == "for") {
        frames_.push_back({false, dead_, false, false, {}});
      } else if (word == "endif" || word == "endfor") {
        if (frames_.empty() || frames_.back().branches != (word == "endif")) return false;
        dead_ = frames_.back().outer_dead;
        keep = !dead_ && (!frames_.back().branches || frames_.back().opened);
        frames_.pop_back();
      } else if (word == "set" && is_idle(item.tokens)) {
        keep = false;
      }
      if (keep) live->push_back(std::move(item));
    }
    return frames_.empty();
  }

 private:
  struct Frame {
    bool branches;  // if, or for
    bool outer_dead;
    bool opened;                    // some branch under a condition was kept
    bool settled;                   // some branch is always taken, if no earlier one is
    std::set<std::string> earlier;  // what earlier branches took
  };

  // A branch of an if; true if its head stays.
  bool enter(Item* item) {
    Frame& frame = frames_.back();
    const Condition condition = ConditionReader({item->tokens.begin() + 1, item->tokens.end()}).read();
    const bool taken_before = frame.earlier.contains(condition.text);
    dead_ = frame.outer_dead || frame.settled || condition.verdict == Verdict::kNever ||
            (condition.verdict == Verdict::kOpen && taken_before);
    if (dead_) return false;
    if (condition.verdict == Verdict::kAlways) {
      frame.settled = true;
      item->tokens = {{Token::Kind::kWord, "else"}};
      return frame.opened;
    }
    frame.earlier.insert(condition.alternatives.begin(), condition.alternatives.end());
    frame.earlier.insert(condition.text);
    item->tokens = {{Token::Kind::kWord, std::exchange(frame.opened, true) ? "elif" : "if"},
                    {Token::Kind::kCode, condition.text}};
    return true;
  }

  // Sets what only tools would use.
  static bool is_idle(const Tokens& tokens) {
    static constexpr std::array<std::string_view, 6> kIdle = {
        "set tools=none",
        "set tools_in_user_message=true",
        "set tools_in_user_message=false",
        "set user_messages=loop_messages|selectattr('role','equalto','user')|list",
        "set ns.is_tool=false",
        "set ns.is_first=false"};
    return std::find(kIdle.begin(), kIdle.end(), text_of(tokens)) != kIdle.end();
  }

  std::vector<Frame> frames_;
  bool dead_ = false;
};

// Outputs that follow each other become one.
std::vector<Item> join_outputs(std::vector<Item> items) {
  std::vector<Item> joined;
  for (Item& item : items) {
    if (item.statement || joined.empty() || joined.back().statement) {
      joined.push_back(std::move(item));
      continue;
    }
    Tokens& tokens = joined.back().tokens;
    tokens.push_back({Token::Kind::kSign, "+"});
    std::move(item.tokens.begin(), item.tokens.end(), std::back_inserter(tokens));
  }
  return joined;
}

// Line ends as Jinja sees them.
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

std::optional<std::string> survey_template(std::string_view source) {
  if (source.size() > kLargest) return std::nullopt;
  std::vector<Item> items;
  if (!Lexer(unix_lines(source)).read(&items)) return std::nullopt;
  for (Item& item : items) item.tokens = join_words(std::move(item.tokens));
  std::vector<Item> live;
  if (!Pruner().run(std::move(items), &live)) return std::nullopt;
  std::string text;
  for (Item& item : join_outputs(std::move(live))) {
    const Tokens tokens = join_literals(std::move(item.tokens));
    text += (item.statement ? "{%" : "{{") + text_of(tokens) + (item.statement ? "%}" : "}}");
  }
  return text;
}

}  // namespace kvasir

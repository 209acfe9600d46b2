#include "dialogue/literal.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "jinja/text.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 64;
constexpr std::string_view kGemmaQuote = "<|\"|>";

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         static_cast<unsigned char>(c) >= 0x80;
}

class LiteralReader {
 public:
  LiteralReader(std::string_view text, bool gemma) : rest_(text), gemma_(gemma) {}

  std::optional<Json> whole() {
    std::optional<Json> read = value(0);
    skip_space();
    return rest_.empty() ? read : std::nullopt;
  }

  std::optional<Json> keywords() {
    Json object = Json::object();
    for (skip_space(); !rest_.empty(); skip_space()) {
      const std::string key = word();
      if (key.empty() || !take('=')) return std::nullopt;
      std::optional<Json> read = value(0);
      if (!read) return std::nullopt;
      object[key] = std::move(*read);
      if (!take(',')) break;
    }
    skip_space();
    return rest_.empty() ? std::optional(std::move(object)) : std::nullopt;
  }

 private:
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

  bool take(char c) {
    skip_space();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string word() {
    skip_space();
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_word);
    std::string read(rest_.begin(), end);
    rest_.remove_prefix(read.size());
    return read;
  }

  std::optional<Json> value(int depth) {
    skip_space();
    if (rest_.empty() || depth > kDeepest) return std::nullopt;
    if (rest_.starts_with('{')) return object(depth);
    if (rest_.starts_with('[') || (!gemma_ && rest_.starts_with('('))) return list(depth);
    if (starts_string()) {
      std::optional<std::string> text = string();
      return text ? std::optional<Json>(std::move(*text)) : std::nullopt;
    }
    return scalar();
  }

  bool starts_string() const {
    return rest_.starts_with('"') || (gemma_ ? rest_.starts_with(kGemmaQuote) : rest_.starts_with('\''));
  }

  std::optional<Json> scalar() {
    const std::size_t size = std::min(rest_.find_first_of(",]})\n"), rest_.size());
    std::string_view text = rest_.substr(0, size);
    text = text.substr(0, text.find_last_not_of(" \t\r") + 1);
    rest_.remove_prefix(size);
    return text.empty() ? std::nullopt : parse_value(text);
  }

  std::optional<Json> list(int depth) {
    const char close = rest_.front() == '[' ? ']' : ')';
    rest_.remove_prefix(1);
    Json items = Json::array();
    while (!take(close)) {
      std::optional<Json> item = value(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
      if (!take(',')) return take(close) ? std::optional(std::move(items)) : std::nullopt;
    }
    return items;
  }

  std::optional<Json> object(int depth) {
    rest_.remove_prefix(1);
    Json members = Json::object();
    while (!take('}')) {
      skip_space();
      std::optional<std::string> key = starts_string() ? string() : std::optional(word());
      if (!key || (key->empty() && gemma_) || !take(':')) return std::nullopt;
      std::optional<Json> member = value(depth + 1);
      if (!member) return std::nullopt;
      members[*key] = std::move(*member);
      if (!take(',')) return take('}') ? std::optional(std::move(members)) : std::nullopt;
    }
    return members;
  }

  std::optional<std::string> string() {
    if (rest_.starts_with(kGemmaQuote)) {
      rest_.remove_prefix(kGemmaQuote.size());
      const std::size_t end = rest_.find(kGemmaQuote);
      if (end == std::string_view::npos) return std::nullopt;
      std::string text(rest_.substr(0, end));
      rest_.remove_prefix(end + kGemmaQuote.size());
      return text;
    }
    const char quote = rest_.front();
    std::string text;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == quote) {
        rest_.remove_prefix(i + 1);
        return text;
      }
      if (rest_[i] != '\\' || i + 1 == rest_.size()) {
        text += rest_[i];
        continue;
      }
      i += escaped(rest_.substr(i + 1), text);
    }
    return std::nullopt;
  }

  // Appends what an escape stands for; returns its size behind the backslash. REQUIRES: not empty.
  static std::size_t escaped(std::string_view rest, std::string& text) {
    constexpr std::string_view kNames = "nrtbf\\'\"/", kMeanings = "\n\r\t\b\f\\'\"/";
    if (const std::size_t at = kNames.find(rest.front()); at != std::string_view::npos) {
      text += kMeanings[at];
      return 1;
    }
    if (rest.front() == 'u' && rest.size() >= 5) {
      // A pair of surrogates is one character.
      for (const std::size_t size : {std::size_t{11}, std::size_t{5}}) {
        if (rest.size() < size) continue;
        const Json read = Json::parse("\"\\" + std::string(rest.substr(0, size)) + "\"", nullptr, false);
        if (!read.is_string()) continue;
        text += read.get<std::string>();
        return size;
      }
    }
    // Python's own, which its repr() writes for characters that cannot be printed.
    if (const std::size_t digits = rest.front() == 'x' ? 2 : rest.front() == 'U' ? 8 : 0; digits > 0) {
      std::uint32_t code = 0;
      const char* begin = rest.data() + 1;
      const auto [end, error] = std::from_chars(begin, begin + std::min(digits, rest.size() - 1), code, 16);
      if (error == std::errc() && end == begin + digits && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF)) {
        jinja::append_utf8(&text, code);
        return 1 + digits;
      }
    }
    text += '\\';
    text += rest.front();
    return 1;
  }

  std::string_view rest_;
  bool gemma_;
};

// Counts brackets inside strings too, which no harm comes of but for texts of many brackets.
bool nests_too_deep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Writes containers; `leaf` writes the rest and returns false for containers.
template <class Leaf>
void write(const Json& value, std::string_view comma, std::string_view colon, const Leaf& leaf, std::string& text) {
  if (value.is_object()) {
    text += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) text += comma;
      leaf(Json(key), true, text);
      text += colon;
      write(member, comma, colon, leaf, text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    bool first = true;
    for (const Json& item : value) {
      if (!std::exchange(first, false)) text += comma;
      write(item, comma, colon, leaf, text);
    }
    text += ']';
  } else {
    leaf(value, false, text);
  }
}

void write_python(const Json& value, std::string& text) {
  write(
      value, ", ", ": ",
      [](const Json& leaf, bool, std::string& out) {
        if (leaf.is_boolean())
          out += leaf.get<bool>() ? "True" : "False";
        else
          out += leaf.is_null() ? "None" : dumped(leaf);
      },
      text);
}

}  // namespace

std::string spaced_json(const Json& value) {
  std::string text;
  write(
      value, ", ", ": ", [](const Json& leaf, bool, std::string& out) { out += dumped(leaf); }, text);
  return text;
}

std::optional<Json> parse_python_arguments(std::string_view text) {
  return LiteralReader(text, false).keywords();
}

std::string python_arguments(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (!text.empty()) text += ", ";
    text += key + "=";
    write_python(value, text);
  }
  return text;
}

std::optional<Json> parse_gemma_literal(std::string_view text) {
  return LiteralReader(text, true).whole();
}

std::string gemma_literal(const Json& value) {
  std::string text;
  write(
      value, ",", ":",
      [](const Json& leaf, bool key, std::string& out) {
        if (!leaf.is_string())
          out += dumped(leaf);
        else if (key)
          out += leaf.get<std::string>();
        else
          (out += kGemmaQuote) += leaf.get<std::string>() + std::string(kGemmaQuote);
      },
      text);
  return text;
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), is_word);
}

std::optional<Json> parse_value(std::string_view text) {
  if (text == "True" || text == "False") return Json(text == "True");
  if (text == "None") return Json(nullptr);
  if (nests_too_deep(text)) return std::nullopt;
  Json json = Json::parse(text, nullptr, false);
  return json.is_discarded() ? std::nullopt : std::optional(std::move(json));
}

std::size_t find_closing(std::string_view text, bool gemma) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (gemma && text.substr(i).starts_with(kGemmaQuote)) {
      const std::size_t end = text.find(kGemmaQuote, i + kGemmaQuote.size());
      if (end == std::string_view::npos) return end;
      i = end + kGemmaQuote.size() - 1;
    } else if (c == '"' || (!gemma && c == '\'')) {
      for (++i; i < text.size() && text[i] != c; ++i)
        if (text[i] == '\\') ++i;
      if (i >= text.size()) return std::string_view::npos;
    } else if (c == '{' || c == '[' || c == '(') {
      ++depth;
    } else if ((c == '}' || c == ']' || c == ')') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace kvasir

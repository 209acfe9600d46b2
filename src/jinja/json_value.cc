#include "jinja/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/text.h"

namespace kvasir::jinja {
namespace {

constexpr int kMaxDepth = 100;

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<Value> run() {
    std::optional<Value> value = read(0);
    skip_spaces();
    return rest_.empty() ? value : std::nullopt;
  }

 private:
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  bool take_sign(char sign) {
    skip_spaces();
    return take(std::string_view(&sign, 1));
  }

  std::optional<Value> read(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    skip_spaces();
    if (take("null")) return Value::none();
    if (take("true")) return Value::boolean(true);
    if (take("false")) return Value::boolean(false);
    if (take("[")) return read_list(depth);
    if (take("{")) return read_dict(depth);
    if (rest_.starts_with('"')) {
      const std::optional<std::string> text = read_string();
      return text ? std::optional(Value::string(*text)) : std::nullopt;
    }
    return read_number();
  }

  std::optional<Value> read_list(int depth) {
    std::vector<Value> items;
    if (take_sign(']')) return Value::list({});
    do {
      std::optional<Value> item = read(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
    } while (take_sign(','));
    return take_sign(']') ? std::optional(Value::list(std::move(items))) : std::nullopt;
  }

  std::optional<Value> read_dict(int depth) {
    std::vector<std::pair<std::string, Value>> items;
    if (take_sign('}')) return Value::dict({});
    do {
      skip_spaces();
      std::optional<std::string> key = read_string();
      if (!key || !take_sign(':')) return std::nullopt;
      std::optional<Value> value = read(depth + 1);
      if (!value) return std::nullopt;
      const auto same = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == *key; });
      if (same != items.end())
        same->second = std::move(*value);
      else
        items.emplace_back(std::move(*key), std::move(*value));
    } while (take_sign(','));
    return take_sign('}') ? std::optional(Value::dict(std::move(items))) : std::nullopt;
  }

  std::optional<char32_t> read_hex() {
    unsigned code = 0;
    const std::string_view digits = rest_.substr(0, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4) return std::nullopt;
    rest_.remove_prefix(4);
    return static_cast<char32_t>(code);
  }

  bool read_escape(std::string* text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (rest_.empty()) return false;
    const char letter = rest_[0];
    rest_.remove_prefix(1);
    if (const std::size_t at = kLetters.find(letter); at != std::string_view::npos) {
      *text += kMeanings[at];
      return true;
    }
    if (letter != 'u') return false;
    std::optional<char32_t> code = read_hex();
    if (!code || (*code >= 0xDC00 && *code <= 0xDFFF)) return false;
    if (*code >= 0xD800 && *code <= 0xDBFF) {
      if (!take("\\u")) return false;
      const std::optional<char32_t> low = read_hex();
      if (!low || *low < 0xDC00 || *low > 0xDFFF) return false;
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
    }
    append_utf8(text, *code);
    return true;
  }

  std::optional<std::string> read_string() {
    if (!take("\"")) return std::nullopt;
    std::string text;
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
      rest_.remove_prefix(1);
      if (c == '"') return text;
      if (c != '\\')
        text += c;
      else if (!read_escape(&text))
        return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<Value> read_number() {
    const std::string_view start = rest_;
    const auto digits = [&] {
      const std::size_t size = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      rest_.remove_prefix(size);
      return size > 0;
    };
    take("-");
    const bool zero = rest_.starts_with('0');
    const std::string_view whole = rest_;
    if (!digits() || (zero && whole.size() - rest_.size() > 1)) return std::nullopt;
    bool real = false;
    if (take(".") && (real = true) && !digits()) return std::nullopt;
    if (take("e") || take("E")) {
      real = true;
      if (!take("+")) take("-");
      if (!digits()) return std::nullopt;
    }
    const std::string_view shown = start.substr(0, start.size() - rest_.size());
    const char* const end = shown.data() + shown.size();
    std::int64_t integer = 0;
    if (!real && std::from_chars(shown.data(), end, integer).ec == std::errc()) return Value::integer(integer);
    double number = 0;
    if (std::from_chars(shown.data(), end, number).ec != std::errc() || !std::isfinite(number)) return std::nullopt;
    return Value::real(number);
  }

  std::string_view rest_;
};

}  // namespace

std::optional<Value> parse_json(std::string_view text) {
  return Reader(text).run();
}

}  // namespace kvasir::jinja

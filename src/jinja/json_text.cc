// JSON as Python's json.dumps() writes it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"

namespace kvasir::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const std::vector<const Value*>& options) : heap_(heap) {
    ascii_ = flag(options[0], false);
    if (options[1] != nullptr && !options[1]->is_none()) {
      indented_ = true;
      if (options[1]->text() != nullptr) {
        indent_ = given_text(*options[1]->text());
      } else {
        const std::int64_t width = std::max<std::int64_t>(whole(options[1], 0), 0);
        heap_.require(static_cast<std::size_t>(width));
        indent_ = std::string(static_cast<std::size_t>(width), ' ');
      }
      comma_ = ",";
    }
    if (options[2] != nullptr && !options[2]->is_none()) {
      const std::vector<Value> both = iterate(heap, *options[2]);
      if (both.size() != 2) fail("tojson needs two separators");
      comma_ = given_text(string_argument(&both[0], "tojson"));
      colon_ = given_text(string_argument(&both[1], "tojson"));
    }
    sorted_ = flag(options[3], false);
  }

  Value run(const Value& value) {
    write(value);
    return heap_.string(json_, origin_);
  }

 private:
  const std::string& given_text(const Text& text) {
    if (text.origin() == Origin::kCaller) origin_ = Origin::kCaller;
    return text.bytes();
  }

  void new_line() {
    if (!indented_) return;
    const std::size_t bytes = static_cast<std::size_t>(level_) * indent_.size();
    heap_.require(json_.size() + bytes);
    heap_.step(bytes / 64);
    json_ += '\n';
    for (int i = 0; i < level_; ++i) json_ += indent_;
  }

  void append(const std::string& separator) {
    heap_.require(json_.size() + separator.size());
    heap_.step(separator.size() / 64);
    json_ += separator;
  }

  void write_string(const Text& text) {
    heap_.step(text.size() / 8);
    heap_.require(json_.size() + 6 * text.size());  // as \u0000
    if (text.origin() == Origin::kCaller) origin_ = Origin::kCaller;
    json_ += '"';
    std::string_view rest = text.bytes();
    while (!rest.empty()) {
      const std::string_view character = rest.substr(0, character_size(rest));
      rest.remove_prefix(character.size());
      const auto code = static_cast<std::uint32_t>(code_point(character));
      constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      const std::size_t short_form = code < 0x80 ? kEscaped.find(character[0]) : std::string_view::npos;
      if (short_form != std::string_view::npos) {
        json_ += '\\';
        json_ += "\"\\nrtbf"[short_form];
      } else if (code < 0x20 || (ascii_ && code > 0x7F && code < 0x10000)) {
        json_ += fmt::format("\\u{:04x}", code);
      } else if (ascii_ && code >= 0x10000) {
        json_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
      } else {
        json_ += character;
      }
    }
    json_ += '"';
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void write_key(const Value& key) {
    if (key.text() != nullptr) return write_string(*key.text());
    if (!key.is_number() && !key.is_none()) fail("{} cannot be a key in JSON", key.type_name());
    json_ += '"';
    write(key);
    json_ += '"';
  }

  void write_list(const std::vector<Value>& items) {
    if (items.empty()) {
      json_ += "[]";
      return;
    }
    json_ += '[';
    ++level_;
    bool first = true;
    for (const Value& item : items) {
      if (!std::exchange(first, false)) append(comma_);
      new_line();
      write(item);
    }
    --level_;
    new_line();
    json_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.items.empty()) {
      json_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (sorted_)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* one, const auto* other) { return less(heap_, one->first, other->first); });
    json_ += '{';
    ++level_;
    bool first = true;
    for (const auto* item : items) {
      if (!std::exchange(first, false)) append(comma_);
      new_line();
      write_key(item->first);
      append(colon_);
      write(item->second);
    }
    --level_;
    new_line();
    json_ += '}';
  }

  void write(const Value& value) {
    heap_.step();
    heap_.require(json_.size() + static_cast<std::size_t>(level_) * indent_.size());
    using Form = List::Form;
    if (value.text() != nullptr) return write_string(*value.text());
    if (value.dict() != nullptr) return write_dict(*value.dict());
    if (value.list() != nullptr && (value.list()->form == Form::kList || value.list()->form == Form::kTuple))
      return write_list(value.list()->items);
    if (value.is_none())
      json_ += "null";
    else if (value.is_bool())
      json_ += truth(value) ? "true" : "false";
    else if (value.is_int())
      json_ += std::to_string(value.as_int());
    else if (value.is_real())
      json_ += number(value.as_real());
    else
      fail("{} cannot be written as JSON", value.type_name());
  }

  Heap& heap_;
  std::string json_;
  Origin origin_ = Origin::kTemplate;
  bool ascii_ = false;
  bool sorted_ = false;
  bool indented_ = false;
  std::string indent_;
  std::string comma_ = ", ";
  std::string colon_ = ": ";
  int level_ = 0;
};

}  // namespace

Value to_json(Heap& heap, const Value& value, const Given& given) {
  return JsonWriter(heap, bind("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"})).run(value);
}

}  // namespace kvasir::jinja

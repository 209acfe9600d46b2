#include "grammar/automata/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kvasir::grammar {

CharSet complement(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet result;
  char32_t next = 0;
  for (const CharRange& range : set) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = std::max(next, static_cast<char32_t>(range.last + 1));
  }
  if (next <= kLastChar) result.push_back({next, kLastChar});
  return result;
}

CharSet unicode_category(std::string_view name) {
  static const std::map<std::string, CharSet, std::less<>> kSets = [] {
    std::map<std::string, CharSet, std::less<>> sets;
    for (char32_t c = 0; c <= kLastChar; ++c) {
      const std::string_view category = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
      for (const std::string_view each : {category, category.substr(0, 1)}) {
        CharSet& set = sets[std::string(each)];
        if (!set.empty() && set.back().last + 1 == c) {
          set.back().last = c;
        } else {
          set.push_back({c, c});
        }
      }
    }
    return sets;
  }();
  const auto found = kSets.find(name);
  return found != kSets.end() ? found->second : CharSet();
}

char32_t take_char(std::string_view& text) {
  utf8proc_int32_t c = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &c);
  text.remove_prefix(static_cast<std::size_t>(std::max<utf8proc_ssize_t>(size, 1)));
  return static_cast<char32_t>(c);
}

std::optional<char32_t> take_hex(std::string_view& text, std::size_t digits) {
  char32_t value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const char c = text.empty() ? 'x' : text.front();
    const bool digit = c >= '0' && c <= '9', letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
    if (!digit && !letter) return std::nullopt;
    value = value * 16 + static_cast<char32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
    text.remove_prefix(1);
  }
  return value;
}

}  // namespace kvasir::grammar

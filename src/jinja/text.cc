#include "jinja/text.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

namespace kvasir::jinja {

Origin Text::origin() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.origin == Origin::kCaller; })
             ? Origin::kCaller
             : Origin::kTemplate;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin)
    runs_.back().end = bytes_.size();
  else
    runs_.push_back({bytes_.size(), origin});
}

void Text::append(const Text& other, std::size_t from, std::size_t size) {
  const std::string_view bytes = other.bytes_;
  const std::size_t end = from + size;
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), from,
                              [](std::size_t offset, const Run& each) { return offset < each.end; });
  for (; from < end; ++run) {
    const std::size_t next = std::min(end, run->end);
    append(bytes.substr(from, next - from), run->origin);
    from = next;
  }
}

Text Text::substring(std::size_t from, std::size_t size) const {
  Text part;
  part.append(*this, from, size);
  return part;
}

std::size_t character_size(std::string_view text) {
  if (static_cast<unsigned char>(text[0]) < 0x80) return 1;
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size(), 4)), &code);
  return size < 1 ? 1 : static_cast<std::size_t>(size);
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += character_size(text.substr(at));
  return count;
}

std::size_t character_offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += character_size(text.substr(at));
  return at;
}

char32_t code_point(std::string_view character) {
  utf8proc_int32_t code = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                                     static_cast<utf8proc_ssize_t>(character.size()), &code);
  return size < 1 ? 0xDC00 + static_cast<unsigned char>(character[0]) : static_cast<char32_t>(code);
}

void append_utf8(std::string* text, char32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text->append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

bool is_space(std::string_view character) {
  const char32_t code = code_point(character);
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

std::size_t last_character_size(std::string_view text) {
  std::size_t size = 1;
  for (std::size_t more = 2; more <= 4 && more <= text.size(); ++more)
    if (character_size(text.substr(text.size() - more)) == more) size = more;
  return size;
}

Range strip(std::string_view text, const std::string* characters, bool left, bool right) {
  std::unordered_set<std::string_view> set;
  if (characters != nullptr)
    for (std::string_view rest = *characters; !rest.empty(); rest.remove_prefix(character_size(rest)))
      set.insert(rest.substr(0, character_size(rest)));
  const auto goes = [&](std::string_view character) {
    return characters == nullptr ? is_space(character) : set.contains(character);
  };
  std::size_t from = 0;
  while (left && from < text.size()) {
    const std::size_t size = character_size(text.substr(from));
    if (!goes(text.substr(from, size))) break;
    from += size;
  }
  std::size_t end = text.size();
  while (right && end > from) {
    const std::size_t size = last_character_size(text.substr(from, end - from));
    if (!goes(text.substr(end - size, size))) break;
    end -= size;
  }
  return {from, end - from};
}

Text change_case(const Text& text, Case to) {
  Text changed;
  std::size_t at = 0;
  bool starts = true;  // a word, for kTitle; the text, for kCapital
  for (const Run& run : text.runs()) {
    std::string bytes;
    while (at < run.end) {
      const std::string_view rest = std::string_view(text.bytes()).substr(at, run.end - at);
      const std::string_view character = rest.substr(0, character_size(rest));
      const char32_t code = code_point(character);
      at += character.size();
      const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
      const bool cased =
          category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
      const bool upper = to == Case::kUpper || (to != Case::kLower && starts);
      starts = to == Case::kTitle && !cased;
      if (code >= 0xDC00 && code <= 0xDFFF) {
        bytes += character;
      } else if (upper && code == 0xDF) {
        bytes += to == Case::kUpper ? "SS" : "Ss";
      } else {
        const auto whole = static_cast<utf8proc_int32_t>(code);
        const auto mapped = !upper               ? utf8proc_tolower(whole)
                            : to == Case::kUpper ? utf8proc_toupper(whole)
                                                 : utf8proc_totitle(whole);
        append_utf8(&bytes, static_cast<char32_t>(mapped));
      }
    }
    changed.append(bytes, run.origin);
  }
  return changed;
}

std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char mark = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string shown(1, mark);
  while (!text.empty()) {
    const std::string_view character = text.substr(0, character_size(text));
    text.remove_prefix(character.size());
    const char32_t code = code_point(character);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    const bool hidden = category == UTF8PROC_CATEGORY_CN || (category >= UTF8PROC_CATEGORY_ZS && code != ' ');
    if (code == static_cast<char32_t>(mark) || code == '\\') {
      shown += '\\';
      shown += static_cast<char>(code);
    } else if (code == '\n') {
      shown += "\\n";
    } else if (code == '\r') {
      shown += "\\r";
    } else if (code == '\t') {
      shown += "\\t";
    } else if (!hidden) {
      shown += character;
    } else {
      const auto number = static_cast<std::uint32_t>(code);
      shown += code < 0x100     ? fmt::format("\\x{:02x}", number)
               : code < 0x10000 ? fmt::format("\\u{:04x}", number)
                                : fmt::format("\\U{:08x}", number);
    }
  }
  return shown + mark;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char bytes[400];
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(bytes, bytes + sizeof bytes, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string shown(bytes, end.ptr);
  if (plain && shown.find('.') == std::string::npos) shown += ".0";
  return shown;
}

}  // namespace kvasir::jinja

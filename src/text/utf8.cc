#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/status.h"

namespace kvasir {

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  std::size_t offset = 0;
  while (offset < text.size()) {
    if (bytes[offset] < 0x80) {
      ++offset;
      continue;
    }
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t length =
        utf8proc_iterate(bytes + offset, static_cast<utf8proc_ssize_t>(text.size() - offset), &code_point);
    if (length <= 0) return offset;
    offset += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

Status check_utf8(std::string_view text, std::size_t before, std::string_view what) {
  const std::optional<std::size_t> offset = find_invalid_utf8(text);
  if (!offset) return {};
  return invalid_argument(
      "{} is not valid UTF-8 at byte {} (0x{:02X}); convert it with iconv, for example "
      "`iconv -f WINDOWS-1252 -t UTF-8`",
      what, before + *offset, static_cast<unsigned char>(text[*offset]));
}

std::size_t white_space_prefix(std::string_view text) {
  static constexpr std::string_view kWhiteSpace[] = {
      "\t",     "\n",     "\v",     "\f",     "\r",     " ",      "\u0085", "\u00A0", "\u1680",
      "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008",
      "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
  std::size_t length = 0;
  while (length < text.size()) {
    const std::string_view character = text.substr(length, utf8_length(text[length]));
    if (std::find(std::begin(kWhiteSpace), std::end(kWhiteSpace), character) == std::end(kWhiteSpace)) break;
    length += character.size();
  }
  return length;
}

Utf8Unit first_utf8_unit(std::string_view bytes) {
  KVASIR_CHECK(!bytes.empty());
  using Kind = Utf8Unit::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kComplete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kInvalid, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kComplete, length};
}

}  // namespace kvasir

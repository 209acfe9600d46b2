#include "cli/text_input.h"

#include <fmt/core.h>

#include <charconv>
#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
#include "text/text_kind.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Names content that cannot be UTF-8 text, for a better message than that of its first invalid byte.
Status check_kind(std::string_view bytes, const std::string& source) {
  if (bytes.starts_with("GGUF"))
    return invalid_argument("{} is a GGUF file, not a text; the model is given by -m", source);
  if (bytes.starts_with("KVASIRS"))
    return invalid_argument("{} is a session file, not a text; --load continues it", source);
  if (bytes.starts_with("%PDF-"))
    return invalid_argument("{} is a PDF, not a text; convert it first, for example with `pdftotext`", source);
  KVASIR_RETURN_IF_ERROR(check_text_kind(bytes, source));
  const std::size_t nul = bytes.find('\0');
  if (nul != std::string_view::npos)
    return invalid_argument("{} is no text: byte {} is NUL; convert it to UTF-8 if it is text in UTF-16 or UTF-32",
                            source, nul);
  return {};
}

}  // namespace

Result<std::string_view> text_in(std::string_view bytes, const std::string& path) {
  const std::string source = path == "-" ? "standard input" : fmt::format("'{}'", printable(path, 200));
  KVASIR_RETURN_IF_ERROR(check_kind(bytes, source));
  KVASIR_RETURN_IF_ERROR(check_utf8(bytes, 0, source));
  if (bytes.starts_with(kByteOrderMark)) bytes.remove_prefix(kByteOrderMark.size());
  return bytes;
}

Result<std::string> read_text_file(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(std::string bytes, read_file(path, kMaxTextBytes));
  KVASIR_ASSIGN_OR_RETURN(const std::string_view text, text_in(bytes, path));
  bytes.erase(0, bytes.size() - text.size());
  return bytes;
}

Result<std::string> read_system_file(const std::string& path) {
  Result<std::string> text = read_text_file(path);
  if (text.ok() && text->empty()) return invalid_argument("'{}' is empty; give a system message", printable(path, 200));
  return text;
}

Result<std::string> unescaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (text[0] != '\\') {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    constexpr std::string_view kNames = "ntr\\", kCharacters = "\n\t\r\\";
    std::size_t length = 2;
    const std::size_t which = text.size() > 1 ? kNames.find(text[1]) : std::string_view::npos;
    if (which != std::string_view::npos) {
      out += kCharacters[which];
    } else {
      unsigned byte = 0;
      const std::string_view digits = text.starts_with("\\x") ? text.substr(2, 2) : "";
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (digits.size() != 2 || error != std::errc() || end != digits.data() + digits.size())
        return invalid_argument("'{}' is no escape; there are \\n, \\t, \\r, \\xHH, and \\\\ for a backslash",
                                text.substr(0, text.starts_with("\\x") ? 4 : 2));
      out += static_cast<char>(byte);
      length = 4;
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace kvasir::cli

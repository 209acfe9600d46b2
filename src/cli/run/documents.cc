#include "cli/run/documents.h"

#include "base/status.h"
#include "cli/command.h"
#include "cli/text_input.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir::cli {

void join_part(std::string& text, std::string_view part) {
  if (text.empty()) {
    text = part;
    return;
  }
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  text += "\n\n";
  text += part;
}

Result<std::string> read_document(const std::string& file) {
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_text_file(file));
  if (white_space_prefix(text) < text.size()) return text;
  return invalid_argument("{} is {}; give a file with text",
                          file == "-" ? "standard input" : "'" + printable(file, 200) + "'",
                          text.empty() ? "empty" : "blank");
}

Result<std::string> read_documents(std::span<const std::string> files, const std::optional<std::string>& prompt) {
  std::string text;
  const auto add = [&](std::string_view part) {
    join_part(text, part);
    if (text.size() <= kMaxTextBytes) return Status();
    return exhausted("the documents are larger together than the {} bytes accepted here; split them", kMaxTextBytes);
  };
  for (const std::string& file : files) {
    KVASIR_ASSIGN_OR_RETURN(const std::string part, read_document(file));
    KVASIR_RETURN_IF_ERROR(add(part));
  }
  if (prompt) KVASIR_RETURN_IF_ERROR(add(*prompt));
  return text;
}

}  // namespace kvasir::cli

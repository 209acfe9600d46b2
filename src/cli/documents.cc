#include "cli/documents.h"

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/command.h"
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
  const std::string name = file == "-" ? "standard input" : "'" + printable(file, 200) + "'";
  KVASIR_ASSIGN_OR_RETURN(std::string text, read_file(file, kMaxTextBytes));
  if (text.empty()) return invalid_argument("{} is empty; give a file with text", name);
  if (const Status valid = check_utf8(text); !valid.ok())
    return make_status(valid.code(), "{}: {}", name, valid.message());
  return text;
}

Result<std::string> read_documents(std::span<const std::string> files, const std::optional<std::string>& prompt) {
  std::string text;
  for (const std::string& file : files) {
    KVASIR_ASSIGN_OR_RETURN(const std::string part, read_document(file));
    join_part(text, part);
  }
  if (prompt) join_part(text, *prompt);
  if (text.size() > kMaxTextBytes)
    return invalid_argument("the documents have {} bytes together; at most {} can be read", text.size(), kMaxTextBytes);
  return text;
}

}  // namespace kvasir::cli

// Joins documents and a question into one text.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::cli {

// Appends `part` to `text`, one blank line apart; removes line ends at the end of `text` first. An empty `text` becomes
// `part`, unchanged.
void join_part(std::string& text, std::string_view part);

// Reads a document ("-": standard input). Errors: those of reading; kInvalidArgument, which names the file, if it is
// empty or not valid UTF-8.
Result<std::string> read_document(const std::string& file);

// Joins the documents, in order, and the prompt if there is one. Errors: as read_document; kResourceExhausted if
// together they are larger than a single text may be.
Result<std::string> read_documents(std::span<const std::string> files, const std::optional<std::string>& prompt);

}  // namespace kvasir::cli

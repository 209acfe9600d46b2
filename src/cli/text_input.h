// Reads the texts given to commands.
// Thread-safety: pure functions of the files.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::cli {

// Returns the content of a file without a UTF-8 byte-order mark. `path`: the source in messages; "-" is standard input.
// Errors: kInvalidArgument naming the file and the first byte that is not valid UTF-8, counted from the start of the
// file.
Result<std::string_view> text_in(std::string_view bytes, const std::string& path);

// Reads a text from a file, or standard input if `path` is "-". Errors: those of read_file and text_in.
Result<std::string> read_text_file(const std::string& path);

// Reads a system message. Errors: as read_text_file; kInvalidArgument for an empty one.
Result<std::string> read_system_file(const std::string& path);

// Returns the text with its escapes replaced: \n, \t, \r, \\ and \xHH, a byte in two hexadecimal digits. Errors:
// kInvalidArgument for any other.
Result<std::string> unescaped(std::string_view text);

}  // namespace kvasir::cli

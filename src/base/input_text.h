// A text to read, from a file or standard input.
// Ownership: the text lives as long as the object.
// Thread-safety: const members may be called from any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/mapped_file.h"
#include "kvasir/status.h"

namespace kvasir {

// Maps a regular file, so that its text takes no memory of the process's own; copies anything else. A mapped file must
// not be truncated while the text is in use: the system would end the process (SIGBUS).
class InputText {
 public:
  // `path`: "-" is standard input. Errors: as read_file.
  static Result<InputText> open(const std::string& path, std::size_t max_bytes);

  std::string_view text() const;

 private:
  std::optional<MappedFile> file_;
  std::string copy_;  // without a mapped file
};

}  // namespace kvasir

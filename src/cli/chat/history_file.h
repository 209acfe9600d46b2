// The messages of earlier chats, in a file that only its user can read.
//
// One message per line; a line end in it is written as \n and a backslash as \\.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

inline constexpr int kMostHistory = 1000;  // messages kept; the oldest are removed first

class HistoryFile {
 public:
  // Returns the file named by KVASIR_HISTORY (empty: none), or kvasir/history below XDG_STATE_HOME or ~/.local/state.
  static HistoryFile of_user();

  // `path`: empty for no file.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}

  // Returns the newest messages, oldest first; none if the file cannot be read. Removes older ones from the file.
  std::vector<std::string> load() const;

  // Adds a message, unless it is longer than 4 KiB or not valid UTF-8. Ignores failures: history is a convenience.
  void append(std::string_view message) const;

 private:
  std::string path_;
};

}  // namespace kvasir::cli

// The messages that a user typed in earlier chats, in a file of their own that nobody else may read.
//
// One message a line; a line end in it is written as \n and a backslash as \\.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

inline constexpr int kMostHistory = 1000;  // messages kept; the oldest go first

class HistoryFile {
 public:
  // The file that KVASIR_HISTORY names (empty: none), or kvasir/history below XDG_STATE_HOME, or ~/.local/state.
  static HistoryFile of_user();

  // `path`: empty for no file.
  explicit HistoryFile(std::string path) : path_(std::move(path)) {}

  // Returns the newest messages, oldest first; none if the file cannot be read. Removes older ones from the file.
  std::vector<std::string> load() const;

  // Adds a message. One of more than 4 KiB, and one that is not valid UTF-8, is left out. Failures are ignored: history
  // is a convenience.
  void append(std::string_view message) const;

 private:
  std::string path_;
};

}  // namespace kvasir::cli

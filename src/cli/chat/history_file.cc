#include "cli/chat/history_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/mapped_file.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMostBytes = 4096;  // of a message
constexpr std::size_t kMostFile = std::size_t{64} << 20;

std::string to_line(std::string_view message) {
  std::string line;
  for (const char c : message) {
    if (c == '\\') {
      line += "\\\\";
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line + "\n";
}

std::string from_line(std::string_view line) {
  std::string message;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size();
    if (escape) ++i;
    message += escape && line[i] == 'n' ? '\n' : line[i];
  }
  return message;
}

// Opens a regular file for writing, restricts it to its owner, and locks it against other chats until it is closed.
// Returns -1 if it cannot be opened.
int open_locked(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return -1;
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return -1;
  }
  if ((st.st_mode & 077) != 0) {
    [[maybe_unused]] const int changed = ::fchmod(fd, st.st_mode & 0700);
  }
  while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
  }
  return fd;
}

int open_to_append(const std::string& path) {
  return open_locked(path, O_WRONLY | O_APPEND | O_CREAT);
}

std::vector<std::string_view> lines_of(std::string_view content) {
  std::vector<std::string_view> lines;
  for (std::size_t start = 0; start < content.size();) {
    const std::size_t end = std::min(content.find('\n', start), content.size());
    if (end > start) lines.push_back(content.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

// Removes all but the newest messages in place: a chat that waits to append has this file open.
void trim(const std::string& path) {
  const int fd = open_locked(path, O_WRONLY);
  if (fd < 0) return;
  if (const auto content = read_file(path, kMostFile); content.ok()) {
    const std::vector<std::string_view> lines = lines_of(*content);
    std::string kept;
    for (std::size_t i = lines.size() - std::min<std::size_t>(lines.size(), kMostHistory); i < lines.size(); ++i)
      kept += std::string(lines[i]) + "\n";
    const auto size = static_cast<ssize_t>(kept.size());
    if (kept.size() < content->size() && ::pwrite(fd, kept.data(), kept.size(), 0) == size) {
      [[maybe_unused]] const int cut = ::ftruncate(fd, size);
    }
  }
  ::close(fd);
}

}  // namespace

HistoryFile HistoryFile::of_user() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text != nullptr ? text : "");
  };
  if (std::getenv("KVASIR_HISTORY") != nullptr) return HistoryFile(value("KVASIR_HISTORY"));
  std::string state = value("XDG_STATE_HOME");
  if (!state.starts_with('/')) {
    if (value("HOME").empty()) return HistoryFile("");
    state = value("HOME") + "/.local/state";
  }
  return HistoryFile(state + "/kvasir/history");
}

std::vector<std::string> HistoryFile::load() const {
  if (path_.empty()) return {};
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) return {};
  const auto content = read_file(path_, kMostFile);
  if (!content.ok()) return {};
  std::vector<std::string_view> lines = lines_of(*content);
  if (lines.size() > kMostHistory) {
    lines.erase(lines.begin(), lines.end() - kMostHistory);
    trim(path_);
  }
  std::vector<std::string> messages;
  for (const std::string_view line : lines)
    if (!find_invalid_utf8(line) && line.find('\0') == std::string_view::npos) messages.push_back(from_line(line));
  return messages;
}

void HistoryFile::append(std::string_view message) const {
  if (path_.empty() || message.size() > kMostBytes || find_invalid_utf8(message)) return;
  int fd = open_to_append(path_);
  if (fd < 0) {
    // Folders made for XDG_STATE_HOME are private, too.
    const mode_t before = ::umask(077);
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
    ::umask(before);
    fd = open_to_append(path_);
  }
  if (fd < 0) return;
  const std::string line = to_line(message);
  [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());  // one call: other chats append too
  ::close(fd);
}

}  // namespace kvasir::cli

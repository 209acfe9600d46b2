#include "cli/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/mapped_file.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMostBytes = 4096;  // of a message
constexpr std::size_t kMostFile = std::size_t{64} << 20;

std::string escaped(std::string_view message) {
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

std::string unescaped(std::string_view line) {
  std::string message;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size();
    if (escape) ++i;
    message += escape && line[i] == 'n' ? '\n' : line[i];
  }
  return message;
}

// Opens a regular file for appending, made if needed, readable by its owner alone; -1 if that is not possible.
int open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  struct stat st {};
  if (fd >= 0 && (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
    ::close(fd);
    return -1;
  }
  return fd;
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
  std::vector<std::string_view> lines;
  for (std::size_t start = 0; start < content->size();) {
    const std::size_t end = std::min(content->find('\n', start), content->size());
    if (end > start) lines.push_back(std::string_view(*content).substr(start, end - start));
    start = end + 1;
  }
  if (lines.size() > kMostHistory) {
    lines.erase(lines.begin(), lines.end() - kMostHistory);
    std::string kept;
    for (const std::string_view line : lines) kept += std::string(line) + "\n";
    [[maybe_unused]] const Status written = write_file(path_, std::as_bytes(std::span(kept)));
  }
  std::vector<std::string> messages;
  for (const std::string_view line : lines)
    if (!find_invalid_utf8(line) && line.find('\0') == std::string_view::npos) messages.push_back(unescaped(line));
  return messages;
}

void HistoryFile::append(std::string_view message) const {
  if (path_.empty() || message.size() > kMostBytes || find_invalid_utf8(message)) return;
  int fd = open_to_append(path_);
  if (fd < 0) {
    // The folders of XDG_STATE_HOME are private, too.
    const mode_t before = ::umask(077);
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
    ::umask(before);
    fd = open_to_append(path_);
  }
  if (fd < 0) return;
  const std::string line = escaped(message);
  [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());  // one call: chats run side by side
  ::close(fd);
}

}  // namespace kvasir::cli

// A file mapped read-only into memory, and whole-file reading.
// Ownership: the mapping lives as long as the object; views into it must not outlive it.
// Thread-safety: const members may be called from any thread.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

class MappedFile {
 public:
  // Errors: kNotFound, kInvalidArgument (not a regular file, or not readable), kIo.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // When the file had last been modified when it was opened: nanoseconds since 1970.
  std::int64_t modified() const { return modified_; }

  // Advises the system that [offset, offset + size) is not needed again and need not stay resident.
  void release(std::size_t offset, std::size_t size) const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t modified_ = 0;
};

// Returns the modification time in a result of fstat, nanoseconds since 1970.
std::int64_t modified_of(const struct stat& status);

// Reads a whole file, or standard input when `path` is "-". Errors: as for a mapped file; kResourceExhausted if there
// are more than `max_bytes`.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

// Writes `content` to a temporary file beside `path`, then renames it, so that a full disk does not destroy an existing
// file. Follows symbolic links. A path that is not a regular file (a device, a pipe) is written to, never replaced.
Status write_file(const std::string& path, std::span<const std::byte> content);

// Returns an unused file name beside `target` for a file that will be renamed to `target` once complete:
// `target`.partial, with a number appended if needed.
std::string temporary_name(const std::string& target);

// The file that a complete temporary file will replace.
struct ReplaceTarget {
  std::string path;    // symbolic links followed
  mode_t mode = 0644;  // permissions of the existing file
};

// Finds the file at a path that would be replaced. Errors: kInvalidArgument for an empty path, for anything but a
// regular file (a folder, a device, a pipe) and for a file that may not be written; the system's for a dangling
// symbolic link.
Result<ReplaceTarget> replace_target(const std::string& path);

// Checks whether a file could replace the one at a path now, so that long work can fail early. Changes nothing. Errors:
// as replace_target; the system's if no file can be created beside it.
Status check_replaceable(const std::string& path);

// Returns the error of the last system call (errno): "cannot WHAT 'PATH': REASON", and what to do about a full disk.
Status errno_status(const char* what, const std::string& path);

// Checks whether write_file could write to a path now, so that long work can fail early. Changes nothing. Errors: as
// write_file.
Status check_writable(const std::string& path);

}  // namespace kvasir

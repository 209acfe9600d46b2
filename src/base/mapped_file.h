// A file mapped read-only into memory, and whole-file reading.
// Ownership: the mapping lives as long as the object; views into it must not outlive it.
// Thread-safety: const members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

class MappedFile {
 public:
  // Errors: kNotFound, kInvalidArgument (no regular file, or one that may not be read), kIo.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the system that [offset, offset + size) was read for the last time, so it need not stay resident.
  void release(std::size_t offset, std::size_t size) const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Reads a whole file, or standard input when `path` is "-". Errors: as for a
// mapped file, kResourceExhausted over `max_bytes`.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

// Writes `content` to `path`: to a temporary file beside it first, then renamed, so that a full disk loses no old file.
// A link is followed to the file it names; what is no regular file (a device, a pipe) is written to, never replaced.
Status write_file(const std::string& path, std::span<const std::byte> content);

// A name beside `target` that no file has, for what is renamed to `target` once it is complete: `target`.partial, or
// with a number behind it.
std::string temporary_name(const std::string& target);

// Whether write_file could write there as things stand, for whoever has long to work before. Leaves everything as it
// is. Errors: as write_file.
Status check_writable(const std::string& path);

}  // namespace kvasir

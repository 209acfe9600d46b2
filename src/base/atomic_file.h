// A file that appears whole or not at all: written beside its place, made durable, then renamed over it.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

class AtomicFile {
 public:
  // Starts to write PATH.partial. Errors: kNotFound, kResourceExhausted and their like with the system's reason;
  // kResourceExhausted too while another process writes it.
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes what was written, unless it was committed.
  ~AtomicFile();

  // Errors: kResourceExhausted with the system's reason (a full disk).
  Status write(std::span<const std::byte> bytes);
  // Puts the file in its place. What stood there before is replaced at once, or stays as it was. Errors: as write.
  Status commit();

 private:
  AtomicFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string partial() const { return path_ + ".partial"; }
  Status failed(const char* what) const;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace kvasir

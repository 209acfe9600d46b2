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
  // Creates PATH.partial. Errors: kNotFound, kResourceExhausted and similar, with the system's reason;
  // kResourceExhausted also while another process writes the same file.
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the partial file, unless it was committed.
  ~AtomicFile();

  // Errors: kResourceExhausted with the system's reason (a full disk).
  Status write(std::span<const std::byte> bytes);
  // Renames the partial file to PATH. Replaces an existing file atomically, or leaves it as it was. Errors: as write.
  Status commit();

 private:
  AtomicFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string partial() const { return path_ + ".partial"; }
  Status failed(const char* what) const;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace kvasir

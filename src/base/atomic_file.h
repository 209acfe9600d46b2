// A file that appears whole or not at all: written beside its place, made durable, then renamed over it.
// Thread-safety: none.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

class AtomicFile {
 public:
  // Creates PATH.partial, with a number added if that name is taken. Follows symbolic links. Keeps the permissions of
  // the file it replaces, and its owner where the system allows it; a new file gets `new_mode`. Errors: as
  // replace_target and check_replaceable (base/mapped_file.h).
  static Result<AtomicFile> create(const std::string& path, mode_t new_mode = 0644);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the partial file, unless it was committed. A killed process leaves it behind, and no later writer removes
  // it: it cannot tell a dead writer's file from another.
  ~AtomicFile();

  // Errors: kResourceExhausted for a full disk; the system's otherwise.
  Status write(std::span<const std::byte> bytes);
  // Renames the partial file to PATH. Replaces an existing file atomically, or leaves it as it was. Errors: as write.
  Status commit();

 private:
  AtomicFile(std::string path, std::string partial) : path_(std::move(path)), partial_(std::move(partial)) {}

  std::string path_;
  std::string partial_;
  int descriptor_ = -1;
};

}  // namespace kvasir

#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir {

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t new_mode) {
  KVASIR_ASSIGN_OR_RETURN(const ReplaceTarget target, replace_target(path));
  struct stat old {};
  const bool replaces = ::stat(target.path.c_str(), &old) == 0;
  const mode_t mode = replaces ? target.mode : new_mode;
  for (;;) {
    AtomicFile file(target.path, temporary_name(target.path));
    file.descriptor_ = ::open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file.descriptor_ < 0 && errno == EEXIST) continue;  // another process was faster
    if (file.descriptor_ < 0) return errno_status("create", file.partial_);
    if (replaces && (old.st_uid != ::geteuid() || old.st_gid != ::getegid()) &&
        ::fchown(file.descriptor_, old.st_uid, old.st_gid) == 0)
      (void)::fchmod(file.descriptor_, mode);  // a change of owner may clear permissions
    return file;
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(partial_.c_str());
  ::close(descriptor_);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min<std::size_t>(bytes.size(), 1 << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno_status("write", partial_);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) return errno_status("write", partial_);
  if (::rename(partial_.c_str(), path_.c_str()) != 0) return errno_status("rename", partial_);
  ::close(std::exchange(descriptor_, -1));
  // The rename is durable once the folder is synced.
  const std::size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  if (const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
  return {};
}

}  // namespace kvasir

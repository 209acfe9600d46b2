#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace kvasir {

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  const std::string partial = path + ".partial";
  const int descriptor = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0)
    return invalid_argument("cannot write {}: {}; choose another place", partial, std::strerror(errno));
  AtomicFile file(path, descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    ::close(std::exchange(file.descriptor_, -1));  // another process holds it
    return exhausted("cannot write {}: another process is writing it; wait for it, or choose another name", partial);
  }
  // Discards what a killed process left behind.
  if (::ftruncate(descriptor, 0) != 0) return file.failed("write");
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(partial().c_str());
  ::close(descriptor_);
}

Status AtomicFile::failed(const char* what) const {
  return exhausted("cannot {} {}: {}; make room, or choose another place", what, partial(), std::strerror(errno));
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min<std::size_t>(bytes.size(), 1 << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed("write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) return failed("write");
  if (::rename(partial().c_str(), path_.c_str()) != 0) return failed("rename");
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

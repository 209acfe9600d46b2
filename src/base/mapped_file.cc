#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status.h"

namespace kvasir {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

StatusCode code_of(int error) {
  switch (error) {
    case ENOENT: return StatusCode::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return StatusCode::kResourceExhausted;
    case EACCES:
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: return StatusCode::kInvalidArgument;  // the path is wrong, not the machine
    default: return StatusCode::kIo;
  }
}

}  // namespace

Status errno_status(const char* what, const std::string& path) {
  const int error = errno;
  const StatusCode code = code_of(error);
  return make_status(code, "cannot {} '{}': {}{}", what, path, std::strerror(error),
                     code == StatusCode::kResourceExhausted ? "; make room, or choose another place" : "");
}

std::int64_t modified_of(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return errno_status("open", path);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return errno_status("stat", path);
  if (!S_ISREG(st.st_mode)) return invalid_argument("'{}' is not a regular file", path);
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<std::size_t>(st.st_size);
  file.modified_ = modified_of(st);
  if (file.size_ > 0) {
    void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (p == MAP_FAILED) return errno_status("map", path);
    file.data_ = static_cast<const std::byte*>(p);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_(other.modified_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_, other.modified_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::size_t offset, std::size_t size) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + size) / page * page;
  if (begin < end && end <= size_) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  FileDescriptor fd(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return errno_status("open", path);
  std::string out;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("read", path);
    if (n == 0) return out;
    if (out.size() + static_cast<std::size_t>(n) > max_bytes)
      return exhausted("'{}' is larger than the {} bytes accepted here; split it", path, max_bytes);
    out.append(buffer, static_cast<std::size_t>(n));
  }
}

namespace {

// Writes all of `content` and closes the descriptor.
Status write_all(FileDescriptor& fd, const std::string& path, std::span<const std::byte> content) {
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t n = ::write(fd.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("write", path);
    done += static_cast<std::size_t>(n);
  }
  return fd.close() == 0 ? Status{} : errno_status("write", path);
}

}  // namespace

std::string temporary_name(const std::string& target) {
  const std::string name = target + ".partial";
  std::string free = name;
  struct stat st {};
  for (int i = 2; ::lstat(free.c_str(), &st) == 0; ++i) free = fmt::format("{}-{}", name, i);
  return free;
}

Result<ReplaceTarget> replace_target(const std::string& path) {
  if (path.empty()) return invalid_argument("a file to write needs a name");
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    const Status status = errno_status("follow", path);
    if (::lstat(path.c_str(), &st) == 0) return status;  // a link
    return ReplaceTarget{path};
  }
  if (!S_ISREG(st.st_mode)) return invalid_argument("'{}' is not a regular file", path);
  if (::access(path.c_str(), W_OK) != 0) return errno_status("write", path);
  std::error_code unresolved;
  const std::string resolved = std::filesystem::canonical(path, unresolved).string();
  return ReplaceTarget{unresolved ? path : resolved, st.st_mode & 0777};
}

Status check_replaceable(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(const ReplaceTarget target, replace_target(path));
  const std::string temporary = temporary_name(target.path);
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) return errno_status("create", temporary);
  ::unlink(temporary.c_str());
  return {};
}

namespace {

// Where write_file writes: directly into what is not a regular file, otherwise to a temporary file that replaces it.
struct Destination {
  bool in_place = false;
  bool exists = false;
  mode_t mode = 0644;
  std::string target;
  std::string temporary;
};

Destination find_destination(const std::string& path) {
  Destination to;
  struct stat st {};
  to.exists = ::stat(path.c_str(), &st) == 0;
  to.in_place = to.exists && !S_ISREG(st.st_mode);
  if (to.exists) to.mode = st.st_mode & 0777;
  std::error_code unresolved;
  const std::string resolved = std::filesystem::canonical(path, unresolved).string();
  to.target = unresolved ? path : resolved;
  to.temporary = temporary_name(to.target);
  return to;
}

}  // namespace

Status write_file(const std::string& path, std::span<const std::byte> content) {
  const Destination to = find_destination(path);
  if (to.in_place) {
    FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd.get() < 0 ? errno_status("open", path) : write_all(fd, path, content);
  }
  FileDescriptor fd(::open(to.temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, to.mode));
  if (fd.get() < 0) return errno_status("create", to.temporary);
  Status status = write_all(fd, path, content);
  if (status.ok() && ::rename(to.temporary.c_str(), to.target.c_str()) != 0) status = errno_status("write", path);
  if (!status.ok()) ::unlink(to.temporary.c_str());
  return status;
}

Status check_writable(const std::string& path) {
  if (path.empty()) return invalid_argument("a file to write needs a name");
  const Destination to = find_destination(path);
  const std::string& file = to.in_place ? path : to.temporary;
  const bool there = ::access(file.c_str(), F_OK) == 0;
  // Opening a pipe without a reader would block.
  FileDescriptor fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | (to.in_place ? 0 : O_CREAT), 0600));
  if (fd.get() < 0 && !(to.in_place && errno == ENXIO)) return errno_status(to.in_place ? "open" : "create", file);
  if (!there) ::unlink(file.c_str());
  return {};
}

}  // namespace kvasir

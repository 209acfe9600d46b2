#include "engine/weight_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir {

struct WeightFile::Header {
  char magic[16] = {'k', 'v', 'a', 's', 'i', 'r', ' ', 'w', 'e', 'i', 'g', 'h', 't', 's', ' ', '1'};
  char packing[32] = {};
  Hash128 fingerprint;
  Hash128 checksum;
  std::uint64_t model_bytes = 0;
  std::int64_t model_changed = 0;  // nanoseconds
  std::uint64_t weight_bytes = 0;
  std::uint64_t own_hash = 0;  // of all before it

  std::uint64_t hash() const { return hash64({reinterpret_cast<const std::byte*>(this), offsetof(Header, own_hash)}); }
  bool is_of_same_bytes(const Header& other) const {
    return std::memcmp(magic, other.magic, sizeof magic) == 0 &&
           std::memcmp(packing, other.packing, sizeof packing) == 0 && fingerprint == other.fingerprint &&
           weight_bytes == other.weight_bytes;
  }
};

Result<std::unique_ptr<WeightFile>> WeightFile::open(const std::string& folder, const Model& model) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    if (errno == ENOENT)
      return make_status(StatusCode::kNotFound, "there is no folder '{}' for packed weights; create it", folder);
    return errno_status("open the folder for packed weights", folder);
  }
  if (!S_ISDIR(status.st_mode)) return invalid_argument("'{}' is no folder; packed weights need one", folder);
  std::unique_ptr<WeightFile> file(
      new WeightFile(folder, fmt::format("{}/{}-{}.weights", folder, model.fingerprint.hex(), model.packing), model));
  KVASIR_RETURN_IF_ERROR(file->map_existing());
  if (!file->complete_) KVASIR_RETURN_IF_ERROR(file->make());
  return file;
}

WeightFile::~WeightFile() {
  if (data_ != nullptr) ::munmap(data_, file_bytes());
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<WeightFile::Header> WeightFile::new_header() const {
  struct stat status {};
  if (::stat(model_.path.c_str(), &status) != 0) return errno_status("stat", model_.path);
  Header header;
  KVASIR_CHECK(model_.packing.size() < sizeof header.packing);
  model_.packing.copy(header.packing, sizeof header.packing);
  header.fingerprint = model_.fingerprint;
  header.model_bytes = static_cast<std::uint64_t>(status.st_size);
  header.model_changed = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  header.weight_bytes = model_.bytes;
  return header;
}

Status WeightFile::map(int protection) {
  void* memory = ::mmap(nullptr, file_bytes(), protection, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return errno_status("map", path_);
  data_ = static_cast<std::byte*>(memory);
  return {};
}

// A file that is there but not of this model, or of an older version, counts as none.
Status WeightFile::map_existing() {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) return errno == ENOENT ? Status() : errno_status("open", path_);
  struct stat status {};
  Header found;
  KVASIR_ASSIGN_OR_RETURN(Header wanted, new_header());
  bool same = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) &&
              static_cast<std::uint64_t>(status.st_size) == file_bytes() &&
              ::pread(descriptor_, &found, sizeof found, 0) == static_cast<ssize_t>(sizeof found) &&
              found.own_hash == found.hash() && found.is_of_same_bytes(wanted);
  if (same && (found.model_bytes != wanted.model_bytes || found.model_changed != wanted.model_changed)) {
    wanted.checksum = model_.checksum();
    same = wanted.checksum == found.checksum;
    // Noted, so that the next start need not compare again; if that fails, it will.
    if (const int writable = same ? ::open(path_.c_str(), O_WRONLY | O_CLOEXEC) : -1; writable >= 0) {
      wanted.own_hash = wanted.hash();
      [[maybe_unused]] const ssize_t written = ::pwrite(writable, &wanted, sizeof wanted, 0);
      ::close(writable);
    }
  }
  if (same) {
    complete_ = true;
    return map(PROT_READ);
  }
  ::close(descriptor_);
  descriptor_ = -1;
  return {};
}

// A file without a name is gone if the process ends before it is complete.
Status WeightFile::make() {
  descriptor_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    temporary_ = path_ + ".XXXXXX";
    descriptor_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
    if (descriptor_ < 0) temporary_.clear();
  }
  if (descriptor_ < 0) return errno_status("write packed weights to", folder_);
  if (const int error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(file_bytes())); error != 0) {
    errno = error;
    const Status status = errno_status("make room for packed weights in", folder_);
    return make_status(status.code(), "{} ({} bytes)", status.message(), file_bytes());
  }
  return map(PROT_READ | PROT_WRITE);
}

Status WeightFile::give_name() {
  if (!temporary_.empty()) {
    if (::fchmod(descriptor_, 0644) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0)
      return errno_status("write", path_);
    temporary_.clear();
    return {};
  }
  const std::string name = fmt::format("/proc/self/fd/{}", descriptor_);
  // Another process may put one there meanwhile, which is as good.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (::linkat(AT_FDCWD, name.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    if (errno != EEXIST) return errno_status("write", path_);
    ::unlink(path_.c_str());
  }
  return errno_status("write", path_);
}

Status WeightFile::complete() {
  KVASIR_CHECK(!complete_);
  KVASIR_ASSIGN_OR_RETURN(Header header, new_header());
  header.checksum = model_.checksum();
  header.own_hash = header.hash();
  std::memcpy(data_, &header, sizeof header);
  if (::msync(data_, file_bytes(), MS_SYNC) != 0 || ::fsync(descriptor_) != 0) return errno_status("write", path_);
  KVASIR_RETURN_IF_ERROR(give_name());
  if (::mprotect(data_, file_bytes(), PROT_READ) != 0) return errno_status("protect", path_);
  complete_ = true;
  return {};
}

}  // namespace kvasir

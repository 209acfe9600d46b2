#include "runtime/weight_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir {

namespace {

std::uint64_t total_bytes(const std::vector<gguf::Part>& files) {
  std::uint64_t sum = 0;
  for (const gguf::Part& file : files) sum += file.size_bytes;
  return sum;
}

// Returns a stamp that differs once any file is modified; for a single file its modification time.
std::int64_t modified_stamp(const std::vector<gguf::Part>& files) {
  if (files.size() == 1) return files.front().modified;
  std::vector<std::uint64_t> numbers;
  for (const gguf::Part& file : files) {
    numbers.push_back(file.size_bytes);
    numbers.push_back(static_cast<std::uint64_t>(file.modified));
  }
  return static_cast<std::int64_t>(hash64(std::as_bytes(std::span(numbers))));
}

Status check_unmodified(const gguf::Part& file) {
  struct stat status {};
  if (::stat(file.path.c_str(), &status) != 0) return errno_status("stat", file.path);
  if (static_cast<std::uint64_t>(status.st_size) != file.size_bytes || modified_of(status) != file.modified)
    return data_loss("'{}' was modified while its weights were packed; start again once it is complete", file.path);
  return {};
}

}  // namespace

struct WeightFile::Header {
  char magic[16] = {'k', 'v', 'a', 's', 'i', 'r', ' ', 'w', 'e', 'i', 'g', 'h', 't', 's', ' ', '1'};
  char packing[32] = {};
  Hash128 identity;
  Hash128 checksum;
  std::uint64_t model_bytes = 0;
  std::int64_t model_modified = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t own_hash = 0;  // of all fields before it

  explicit Header(const Model& model)
      : identity(model.identity),
        model_bytes(total_bytes(model.files)),
        model_modified(modified_stamp(model.files)),
        weight_bytes(model.bytes) {
    KVASIR_CHECK(!model.packing.empty() && model.packing.size() < sizeof packing);
    model.packing.copy(packing, sizeof packing);
  }
  std::uint64_t hash() const { return hash64({reinterpret_cast<const std::byte*>(this), offsetof(Header, own_hash)}); }
  // Returns whether both headers have the same packing and model metadata.
  bool fits(const Header& other) const {
    return std::memcmp(magic, other.magic, sizeof magic) == 0 &&
           std::memcmp(packing, other.packing, sizeof packing) == 0 && identity == other.identity &&
           weight_bytes == other.weight_bytes;
  }
};

WeightFile::WeightFile(const std::string& folder, Model model)
    : folder_(folder),
      path_(fmt::format("{}/{}-{}.weights", folder, model.identity.hex(), model.packing)),
      partial_(path_ + ".partial"),
      model_(std::move(model)) {}

Result<std::unique_ptr<WeightFile>> WeightFile::open(const std::string& folder, const Model& model) {
  std::unique_ptr<WeightFile> file(new WeightFile(folder, model));
  KVASIR_RETURN_IF_ERROR(file->lock_folder());
  KVASIR_RETURN_IF_ERROR(file->map_existing());
  if (file->complete_) {
    file->unlock_folder();
    file->model_.checksum = nullptr;  // its captures need not live on
  } else {
    KVASIR_RETURN_IF_ERROR(file->make());
  }
  return file;
}

WeightFile::~WeightFile() {
  if (data_ != nullptr) ::munmap(data_, file_bytes());
  if (descriptor_ >= 0) {
    ::unlink(partial_.c_str());
    ::close(descriptor_);
  }
  unlock_folder();
}

// Where the file system has no locks, processes that start at once each pack, and the last one's file stays.
Status WeightFile::lock_folder() {
  std::error_code ignored;  // mkdir says what is wrong
  std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), ignored);
  if (::mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST) return errno_status("make the folder", folder_);
  folder_descriptor_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor_ < 0) {
    if (errno == ENOTDIR) return invalid_argument("'{}' is no folder; packed weights need one", folder_);
    return errno_status("open the folder for packed weights", folder_);
  }
  while (::flock(folder_descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
  return {};
}

void WeightFile::unlock_folder() {
  if (folder_descriptor_ >= 0) ::close(folder_descriptor_);
  folder_descriptor_ = -1;
}

// A user who may write to the file could change a running process's weights, or crash it by truncating the file.
Status WeightFile::check_owner(const std::string& path, int descriptor) const {
  struct stat status {
  }, folder{};
  if (::fstat(descriptor, &status) != 0 || ::fstat(folder_descriptor_, &folder) != 0) return errno_status("stat", path);
  if (!S_ISREG(status.st_mode)) return invalid_argument("'{}' is no file of packed weights; remove it", path);
  const bool trusted = status.st_uid == ::geteuid() || status.st_uid == 0 || status.st_uid == folder.st_uid;
  if (!trusted || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return invalid_argument("other users may change '{}'; remove it, or take their permission to write", path);
  return {};
}

Status WeightFile::map(int descriptor, int protection) {
  void* memory = ::mmap(nullptr, file_bytes(), protection, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return errno_status("map", path_);
  data_ = static_cast<std::byte*>(memory);
  return {};
}

// Ignores a file of another model or an older version.
Status WeightFile::map_existing() {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return errno == ENOENT ? Status() : errno_status("open", path_);
  const auto look = [&]() -> Status {
    KVASIR_RETURN_IF_ERROR(check_owner(path_, descriptor));
    const Header wanted(model_);
    Header found(model_);
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) return errno_status("stat", path_);
    if (static_cast<std::uint64_t>(status.st_size) != file_bytes() ||
        ::pread(descriptor, &found, sizeof found, 0) != static_cast<ssize_t>(sizeof found) ||
        found.own_hash != found.hash() || !found.fits(wanted))
      return {};
    const bool noted = found.model_bytes == wanted.model_bytes && found.model_modified == wanted.model_modified;
    if (!noted && found.checksum != model_.checksum()) return {};
    KVASIR_RETURN_IF_ERROR(map(descriptor, PROT_READ));
    ::madvise(data_, file_bytes(), MADV_WILLNEED);
    complete_ = true;
    return {};
  };
  const Status status = look();
  ::close(descriptor);
  return status;
}

// A killed process may have left a file of this name.
Status WeightFile::make() {
  descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (descriptor_ < 0) return errno_status("write packed weights to", folder_);
  KVASIR_RETURN_IF_ERROR(check_owner(partial_, descriptor_));
  if (::ftruncate(descriptor_, 0) != 0) return errno_status("write", partial_);
  int error = 0;
  do {
    error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(file_bytes()));
  } while (error == EINTR);
  if (error != 0) {
    errno = error;
    return errno_status(fmt::format("reserve {} bytes for packed weights in", file_bytes()).c_str(), folder_);
  }
  return map(descriptor_, PROT_READ | PROT_WRITE);
}

Status WeightFile::complete() {
  KVASIR_CHECK(!complete_);
  Header header(model_);
  header.checksum = std::exchange(model_.checksum, nullptr)();
  header.own_hash = header.hash();
  std::memcpy(data_, &header, sizeof header);
  for (const gguf::Part& file : model_.files) KVASIR_RETURN_IF_ERROR(check_unmodified(file));
  if (::msync(data_, file_bytes(), MS_SYNC) != 0 || ::fsync(descriptor_) != 0) return errno_status("write", partial_);
  if (::rename(partial_.c_str(), path_.c_str()) != 0) return errno_status("write", path_);
  ::fsync(folder_descriptor_);
  ::close(std::exchange(descriptor_, -1));
  unlock_folder();
  if (::mprotect(data_, file_bytes(), PROT_READ) != 0) return errno_status("protect", path_);
  complete_ = true;
  return {};
}

}  // namespace kvasir

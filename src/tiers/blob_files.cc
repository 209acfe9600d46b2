#include "tiers/blob_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/status.h"

namespace kvasir {
namespace {

Status system_error(const char* what, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    return exhausted("cannot {} '{}': {}; make room on its disk", what, path, std::strerror(error));
  const StatusCode code = error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
  return make_status(code, "cannot {} '{}': {}", what, path, std::strerror(error));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

class FolderFiles final : public BlobFiles {
 public:
  FolderFiles(std::string folder, int descriptor) : folder_(std::move(folder)), descriptor_(descriptor) {}

  Status write(const std::string& name, std::span<const std::byte> bytes) override {
    const Descriptor file(::openat(descriptor_.number(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.number() < 0) return system_error("write", path_of(name), errno);
    for (std::span<const std::byte> left = bytes; !left.empty();) {
      const ssize_t written = ::write(file.number(), left.data(), left.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return system_error("write", path_of(name), written < 0 ? errno : ENOSPC);
      left = left.subspan(static_cast<std::size_t>(written));
    }
    if (::fsync(file.number()) != 0 || ::fsync(descriptor_.number()) != 0)
      return system_error("write", path_of(name), errno);
    return {};
  }

  Status read(const std::string& name, std::span<std::byte> into) override {
    const Descriptor file(::openat(descriptor_.number(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.number() < 0) return system_error("read", path_of(name), errno);
    struct stat st {};
    if (::fstat(file.number(), &st) != 0) return system_error("read", path_of(name), errno);
    if (!S_ISREG(st.st_mode) || static_cast<std::uint64_t>(st.st_size) != into.size())
      return data_loss("'{}' has {} bytes in place of {}", path_of(name), st.st_size, into.size());
    while (!into.empty()) {
      const ssize_t bytes = ::read(file.number(), into.data(), into.size());
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) return system_error("read", path_of(name), errno);
      if (bytes == 0) return data_loss("'{}' is cut off", path_of(name));
      into = into.subspan(static_cast<std::size_t>(bytes));
    }
    return {};
  }

  void remove(const std::string& name) override { ::unlinkat(descriptor_.number(), name.c_str(), 0); }

  Result<std::vector<std::pair<std::string, std::uint64_t>>> list() override {
    std::vector<std::pair<std::string, std::uint64_t>> found;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      std::error_code unknown;
      const std::uint64_t size = at->is_regular_file(unknown) ? at->file_size(unknown) : 0;
      found.emplace_back(at->path().filename().string(), unknown ? 0 : size);
    }
    if (error) return make_status(StatusCode::kIo, "cannot list the folder '{}': {}", folder_, error.message());
    return found;
  }

 private:
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  Descriptor descriptor_;
};

}  // namespace

Result<std::unique_ptr<BlobFiles>> open_blob_files(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return invalid_argument("cannot make the folder '{}': {}; give one in a folder that can be written", folder,
                            std::strerror(errno));
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0)
    return invalid_argument("cannot use the folder '{}': {}; give one that can be written", folder,
                            std::strerror(errno));
  if (::faccessat(descriptor, ".", W_OK, AT_EACCESS) != 0) {
    const int error = errno;
    ::close(descriptor);
    return invalid_argument("cannot write to the folder '{}': {}; give one that can be written", folder,
                            std::strerror(error));
  }
  return std::unique_ptr<BlobFiles>(std::make_unique<FolderFiles>(folder, descriptor));
}

}  // namespace kvasir

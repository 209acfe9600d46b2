#include "tiers/async_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tiers/transfer.h"

namespace kvasir {
namespace {

// Some file systems cannot make files without a name.
int open_without_name(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return descriptor;
  std::string path = folder + "/kvasir-swap-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

}  // namespace

Result<std::unique_ptr<AsyncFile>> create_scratch_file(const std::string& folder, TransferMethod method) {
  const int descriptor = open_without_name(folder);
  if (descriptor < 0)
    return invalid_argument("cannot create a file in the folder '{}': {}; give a folder that can be written", folder,
                            std::strerror(errno));
  if (method == TransferMethod::kCaller) return make_blocking_file(descriptor);
  if (method != TransferMethod::kThreads) {
    Result<std::unique_ptr<AsyncFile>> file = make_uring_file(descriptor);
    if (file.ok()) return file;
    if (method == TransferMethod::kUring) {
      ::close(descriptor);
      return file.status();
    }
  }
  return make_thread_file(descriptor);
}

}  // namespace kvasir

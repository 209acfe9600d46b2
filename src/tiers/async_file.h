// A file that is read and written asynchronously.
//
// Thread-safety: one caller at a time; transfers run beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// A transfer that has ended. Errors: kResourceExhausted (a full disk), kDataLoss (the file ends too early), others with
// the system's reason.
struct FinishedTransfer {
  std::uint64_t tag = 0;
  Status status;
};

class AsyncFile {
 public:
  // Waits for the transfers under way.
  virtual ~AsyncFile() = default;

  // Begins a transfer of all these bytes, which nothing else may touch until it has ended. `tag` identifies it.
  virtual void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) = 0;
  virtual void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) = 0;

  // Returns the transfers that ended since the last call. If none did and some are under way, waits up to `wait` for
  // one.
  virtual std::vector<FinishedTransfer> finished(std::chrono::milliseconds wait) = 0;

  // Truncates the file, which frees its disk space beyond. REQUIRES: no transfer beyond `bytes` is under way.
  virtual void truncate(std::uint64_t bytes) = 0;

  // How transfers are made: "io_uring", "threads" or "caller".
  virtual std::string_view method() const = 0;
};

enum class TransferMethod {
  kAuto,   // io_uring, or threads where the system refuses it
  kUring,  // or an error
  kThreads,
  kCaller,  // synchronous, in the caller's thread: for threads that do nothing else
};

// Makes an empty file without a name in a folder; it vanishes when the process ends in any way. Errors:
// kInvalidArgument (the folder is missing or cannot be written), kUnsupported (kUring is refused).
Result<std::unique_ptr<AsyncFile>> create_scratch_file(const std::string& folder,
                                                       TransferMethod method = TransferMethod::kAuto);

}  // namespace kvasir

// One file that is read and written without waiting.
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

// A transfer that has ended. Errors: kResourceExhausted (a full disk), kDataLoss (the file ends before what is read),
// others with the system's reason.
struct FinishedTransfer {
  std::uint64_t tag = 0;
  Status status;
};

class AsyncFile {
 public:
  // Waits until the transfers under way have ended.
  virtual ~AsyncFile() = default;

  // Begins a transfer of all of these bytes, which stay untouched by others until it has ended. `tag` names it.
  virtual void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) = 0;
  virtual void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) = 0;

  // Returns the transfers that have ended since the last call. Where some are under way and none has ended, waits for
  // one up to this long.
  virtual std::vector<FinishedTransfer> finished(std::chrono::milliseconds wait) = 0;

  // Ends the file here, so that its disk has what is behind. REQUIRES: no transfer behind is under way.
  virtual void truncate(std::uint64_t bytes) = 0;

  // How transfers are made: "io_uring", "threads" or "caller".
  virtual std::string_view method() const = 0;
};

enum class TransferMethod {
  kAuto,   // io_uring, or threads where the system refuses it
  kUring,  // or an error
  kThreads,
  kCaller,  // each transfer is made when it is begun, by its caller: for threads that do nothing else
};

// Makes an empty file in a folder, which has no name: it is gone when the process ends, however it ends. Errors:
// kInvalidArgument (the folder is missing or cannot be written), kUnsupported (kUring is refused).
Result<std::unique_ptr<AsyncFile>> create_scratch_file(const std::string& folder,
                                                       TransferMethod method = TransferMethod::kAuto);

}  // namespace kvasir

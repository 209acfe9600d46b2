// A transfer, shared by all kinds of AsyncFile. Internal to tiers.
#pragma once

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "tiers/async_file.h"

namespace kvasir {

struct Transfer {
  std::uint64_t tag = 0;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;  // the rest to transfer; not written to unless `reads`
  std::size_t left = 0;
  bool reads = false;

  void advance(std::size_t bytes) {
    data += bytes;
    left -= bytes;
    offset += bytes;
  }
};

// Returns why a transfer ended early. `error`: errno; 0: no byte was transferred.
inline Status transfer_error(const Transfer& transfer, int error) {
  if (transfer.reads && error == 0)
    return data_loss("the scratch file ends before byte {}", transfer.offset + transfer.left);
  const char* what = transfer.reads ? "read" : "write";
  if (error == 0 || error == ENOSPC || error == EDQUOT || error == EFBIG)
    return exhausted("cannot {} the scratch file: {}; make room, or choose another folder", what,
                     std::strerror(error == 0 ? ENOSPC : error));
  return data_loss("cannot {} the scratch file: {}", what, std::strerror(error));
}

// Runs a transfer to its end, or until an error.
Status run_transfer(int descriptor, Transfer transfer);
void cut_off(int descriptor, std::uint64_t bytes);

Result<std::unique_ptr<AsyncFile>> make_uring_file(int descriptor);
Result<std::unique_ptr<AsyncFile>> make_thread_file(int descriptor);
Result<std::unique_ptr<AsyncFile>> make_blocking_file(int descriptor);

}  // namespace kvasir

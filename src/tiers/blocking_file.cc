// A file that is read and written synchronously: for threads that do nothing else.
#include <unistd.h>

#include <utility>

#include "tiers/transfer.h"

namespace kvasir {

Status run_transfer(int descriptor, Transfer transfer) {
  while (transfer.left > 0) {
    const auto at = static_cast<off_t>(transfer.offset);
    const ssize_t bytes = transfer.reads ? ::pread(descriptor, transfer.data, transfer.left, at)
                                         : ::pwrite(descriptor, transfer.data, transfer.left, at);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return transfer_error(transfer, bytes < 0 ? errno : 0);
    transfer.advance(static_cast<std::size_t>(bytes));
  }
  return {};
}

// If this fails, the file is only longer than necessary.
void cut_off(int descriptor, std::uint64_t bytes) {
  static_cast<void>(::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0);
}

namespace {

class BlockingFile final : public AsyncFile {
 public:
  explicit BlockingFile(int descriptor) : descriptor_(descriptor) {}
  ~BlockingFile() override { ::close(descriptor_); }

  void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) override {
    ended_.push_back({tag, run_transfer(descriptor_, {tag, offset, into.data(), into.size(), true})});
  }
  void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) override {
    ended_.push_back(
        {tag, run_transfer(descriptor_, {tag, offset, const_cast<std::byte*>(from.data()), from.size(), false})});
  }
  std::vector<FinishedTransfer> finished(std::chrono::milliseconds) override { return std::exchange(ended_, {}); }
  void truncate(std::uint64_t bytes) override { cut_off(descriptor_, bytes); }

  std::string_view method() const override { return "caller"; }

 private:
  int descriptor_;
  std::vector<FinishedTransfer> ended_;
};

}  // namespace

Result<std::unique_ptr<AsyncFile>> make_blocking_file(int descriptor) {
  return std::unique_ptr<AsyncFile>(std::make_unique<BlockingFile>(descriptor));
}

}  // namespace kvasir

// Transfers by io_uring.
#include <liburing.h>
#include <unistd.h>

#include <deque>
#include <map>

#include "tiers/transfer.h"

namespace kvasir {
namespace {

constexpr unsigned kDepth = 64;

class UringFile final : public AsyncFile {
 public:
  // Takes ownership of the descriptor and the ring.
  UringFile(int descriptor, const io_uring& ring) : descriptor_(descriptor), ring_(ring) {}

  ~UringFile() override {
    while (!under_way_.empty()) finished(std::chrono::seconds(1));
    io_uring_queue_exit(&ring_);
    ::close(descriptor_);
  }

  void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) override {
    begin({tag, offset, into.data(), into.size(), true});
  }

  void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) override {
    begin({tag, offset, const_cast<std::byte*>(from.data()), from.size(), false});
  }

  std::vector<FinishedTransfer> finished(std::chrono::milliseconds wait) override {
    const auto until = std::chrono::steady_clock::now() + wait;
    for (;;) {
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring_, &entry) == 0) {
        const std::uint64_t id = io_uring_cqe_get_data64(entry);
        const int result = entry->res;
        io_uring_cqe_seen(&ring_, entry);
        take(id, result);
      }
      // Submits entries that the kernel refused for lack of memory when they were made.
      if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
      const auto left = until - std::chrono::steady_clock::now();
      if (!ended_.empty() || under_way_.empty() || left <= left.zero()) return std::exchange(ended_, {});
      const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
      __kernel_timespec time{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
      io_uring_wait_cqe_timeout(&ring_, &entry, &time);
    }
  }

  void truncate(std::uint64_t bytes) override { cut_off(descriptor_, bytes); }

  std::string_view method() const override { return "io_uring"; }

 private:
  void begin(const Transfer& transfer) {
    const std::uint64_t id = next_id_++;
    under_way_.emplace(id, transfer);
    submit(id);
  }

  void submit(std::uint64_t id) {
    const Transfer& transfer = under_way_.at(id);
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // the queue is full of entries that the kernel refused
      ended_.push_back({transfer.tag, transfer_error(transfer, EAGAIN)});
      under_way_.erase(id);
      return;
    }
    const auto size = static_cast<unsigned>(transfer.left);
    if (transfer.reads) {
      io_uring_prep_read(entry, descriptor_, transfer.data, size, transfer.offset);
    } else {
      io_uring_prep_write(entry, descriptor_, transfer.data, size, transfer.offset);
    }
    // Without this, the caller would carry out buffered writes itself.
    io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    io_uring_sqe_set_data64(entry, id);
    io_uring_submit(&ring_);
  }

  void take(std::uint64_t id, int result) {
    const auto found = under_way_.find(id);
    if (found == under_way_.end()) return;  // the entry of a timeout
    Transfer& transfer = found->second;
    if (result == -EINTR || result == -EAGAIN) return submit(id);
    if (result > 0) transfer.advance(static_cast<std::size_t>(result));
    if (result > 0 && transfer.left > 0) return submit(id);
    ended_.push_back({transfer.tag, result > 0 ? Status() : transfer_error(transfer, -result)});
    under_way_.erase(found);
  }

  int descriptor_;
  io_uring ring_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Transfer> under_way_;
  std::vector<FinishedTransfer> ended_;
};

}  // namespace

Result<std::unique_ptr<AsyncFile>> make_uring_file(int descriptor) {
  io_uring ring{};
  if (const int error = io_uring_queue_init(kDepth, &ring, 0); error < 0)
    return unsupported("the system refuses io_uring ({}); use threads", std::strerror(-error));
  // Old kernels have io_uring without these operations.
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool knows = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  if (probe != nullptr) io_uring_free_probe(probe);
  if (!knows) {
    io_uring_queue_exit(&ring);
    return unsupported("the system's io_uring cannot read and write; use threads");
  }
  return std::unique_ptr<AsyncFile>(std::make_unique<UringFile>(descriptor, ring));
}

}  // namespace kvasir

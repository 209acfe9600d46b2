// Transfers by threads that wait in pread and pwrite.
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "tiers/transfer.h"

namespace kvasir {
namespace {

constexpr int kThreads = 2;

class ThreadFile final : public AsyncFile {
 public:
  // Takes ownership of the descriptor.
  explicit ThreadFile(int descriptor) : descriptor_(descriptor) {}
  // Throws std::system_error if the system refuses a thread.
  void start() {
    for (std::thread& thread : threads_) thread = std::thread([this] { work(); });
  }

  ~ThreadFile() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    waiting_changed_.notify_all();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
    ::close(descriptor_);
  }

  void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) override {
    begin({tag, offset, into.data(), into.size(), true});
  }

  void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) override {
    begin({tag, offset, const_cast<std::byte*>(from.data()), from.size(), false});
  }

  std::vector<FinishedTransfer> finished(std::chrono::milliseconds wait) override {
    std::unique_lock lock(mutex_);
    if (ended_.empty() && under_way_ > 0) ended_changed_.wait_for(lock, wait, [this] { return !ended_.empty(); });
    under_way_ -= ended_.size();
    return std::exchange(ended_, {});
  }

  void truncate(std::uint64_t bytes) override { cut_off(descriptor_, bytes); }

  std::string_view method() const override { return "threads"; }

 private:
  void begin(const Transfer& transfer) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(transfer);
      ++under_way_;
    }
    waiting_changed_.notify_one();
  }

  // Runs until the last transfer has ended, even when stopping.
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      waiting_changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer transfer = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Status status = run_transfer(descriptor_, transfer);
      lock.lock();
      ended_.push_back({transfer.tag, std::move(status)});
      ended_changed_.notify_one();
    }
  }

  int descriptor_;
  std::mutex mutex_;
  std::condition_variable waiting_changed_;
  std::condition_variable ended_changed_;
  std::deque<Transfer> waiting_;
  std::vector<FinishedTransfer> ended_;
  std::size_t under_way_ = 0;  // begun, and not yet returned by finished()
  bool stopping_ = false;
  std::thread threads_[kThreads];
};

}  // namespace

Result<std::unique_ptr<AsyncFile>> make_thread_file(int descriptor) {
  auto file = std::make_unique<ThreadFile>(descriptor);
  try {
    file->start();
  } catch (const std::system_error& error) {
    return exhausted("the system refuses threads for the scratch file: {}; raise the limit on threads", error.what());
  }
  return std::unique_ptr<AsyncFile>(std::move(file));
}

}  // namespace kvasir

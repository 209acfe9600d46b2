// A file in memory whose transfers end when they are told to, and go wrong where they are told to.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "tiers/async_file.h"

namespace kvasir::test {

class FaultyFile final : public AsyncFile {
 public:
  enum class Fault { kNone, kError, kDamaged };
  // Asked of each transfer, numbered from 0 on; reads and writes apart.
  using Plan = std::function<Fault(bool reads, int number)>;

  // Each transfer ends `delay` calls of finished() later. `ended` is counted up with each, and outlives this.
  explicit FaultyFile(Plan plan, int delay = 0, int* ended = nullptr)
      : plan_(std::move(plan)), delay_(delay), ended_(ended) {}

  void read(std::uint64_t tag, std::uint64_t offset, std::span<std::byte> into) override {
    waiting_.push_back({tag, offset, into, {}, plan_(true, reads_++), delay_});
  }
  void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) override {
    waiting_.push_back({tag, offset, {}, from, plan_(false, writes_++), delay_});
  }

  std::vector<FinishedTransfer> finished(std::chrono::milliseconds) override {
    std::vector<FinishedTransfer> done;
    for (Waiting& transfer : waiting_)
      if (transfer.left-- == 0) done.push_back({transfer.tag, run(transfer)});
    std::erase_if(waiting_, [](const Waiting& transfer) { return transfer.left < 0; });
    if (ended_ != nullptr) *ended_ += static_cast<int>(done.size());
    return done;
  }
  void truncate(std::uint64_t bytes) override {
    bytes_.resize(std::min(bytes_.size(), static_cast<std::size_t>(bytes)));
  }
  std::string_view method() const override { return "faulty"; }

 private:
  struct Waiting {
    std::uint64_t tag;
    std::uint64_t offset;
    std::span<std::byte> into;
    std::span<const std::byte> from;
    Fault fault;
    int left;
  };

  Status run(const Waiting& transfer) {
    if (transfer.fault == Fault::kError) return Status(StatusCode::kResourceExhausted, "no space left on device");
    const std::size_t size = std::max(transfer.into.size(), transfer.from.size());
    const auto at = static_cast<std::size_t>(transfer.offset);
    bytes_.resize(std::max(bytes_.size(), at + size));
    if (!transfer.from.empty()) std::memcpy(bytes_.data() + at, transfer.from.data(), size);
    if (!transfer.into.empty()) std::memcpy(transfer.into.data(), bytes_.data() + at, size);
    if (transfer.fault == Fault::kDamaged)
      (transfer.into.empty() ? bytes_[at + size / 2] : transfer.into[size / 2]) ^= std::byte{4};
    return {};
  }

  Plan plan_;
  int delay_;
  int* ended_;
  int reads_ = 0;
  int writes_ = 0;
  std::vector<Waiting> waiting_;
  std::vector<std::byte> bytes_;
};

inline FaultyFile::Fault no_fault(bool, int) {
  return FaultyFile::Fault::kNone;
}

}  // namespace kvasir::test

// Files and stores in memory, of which calls go wrong where they are told to.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tiers/blob_files.h"
#include "tiers/blob_store.h"

namespace kvasir::test {

enum class BlobFault { kNone, kError, kShort, kDamaged };

// Asked of each call, numbered from 0 on; reads and writes apart.
using BlobFaultPlan = std::function<BlobFault(bool reads, int number)>;

inline BlobFault no_blob_fault(bool, int) {
  return BlobFault::kNone;
}

class FaultyFiles final : public BlobFiles {
 public:
  using Content = std::map<std::string, std::vector<std::byte>>;

  // `content` outlives this: the disk.
  FaultyFiles(Content* content, BlobFaultPlan plan) : content_(*content), plan_(std::move(plan)) {}

  Status write(const std::string& name, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    const BlobFault fault = plan_(false, writes_++);
    std::vector<std::byte> file(bytes.begin(), bytes.end());
    if (fault == BlobFault::kDamaged) file[file.size() / 2] ^= std::byte{4};
    if (fault == BlobFault::kShort || fault == BlobFault::kError) file.resize(file.size() / 2);
    content_[name] = std::move(file);
    if (fault == BlobFault::kError) return Status(StatusCode::kResourceExhausted, "no space left on device");
    return {};
  }
  Status read(const std::string& name, std::span<std::byte> into) override {
    const std::lock_guard lock(mutex_);
    const BlobFault fault = plan_(true, reads_++);
    const auto found = content_.find(name);
    if (found == content_.end()) return Status(StatusCode::kNotFound, "no such file");
    if (fault == BlobFault::kError) return Status(StatusCode::kIo, "input/output error");
    if (fault == BlobFault::kShort || found->second.size() != into.size())
      return Status(StatusCode::kDataLoss, "the file is cut off");
    std::memcpy(into.data(), found->second.data(), into.size());
    if (fault == BlobFault::kDamaged) into[into.size() / 2] ^= std::byte{4};
    return {};
  }
  void remove(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    content_.erase(name);
  }
  Result<std::vector<std::pair<std::string, std::uint64_t>>> list() override {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::string, std::uint64_t>> files;
    for (const auto& [name, bytes] : content_) files.emplace_back(name, bytes.size());
    return files;
  }

 private:
  std::mutex mutex_;
  Content& content_;
  BlobFaultPlan plan_;
  int reads_ = 0;
  int writes_ = 0;
};

// A store whose calls may be slow, too: it is asked like one in the network.
class FarStore final : public BlobStore {
 public:
  struct Content {
    std::mutex mutex;
    std::map<std::string, std::vector<std::byte>> blobs;
    std::function<void()> before;       // each call; set before there is a store
    std::atomic<int> milliseconds = 0;  // that each call takes
    std::atomic<bool> fails = false;
    std::atomic<bool> holds = false;  // no call ends meanwhile
  };
  explicit FarStore(std::shared_ptr<Content> content) : content_(std::move(content)) {}

  Result<std::vector<std::uint64_t>> sizes(std::span<const BlobKey> keys) override {
    if (Status status = call(); !status.ok()) return status;
    std::vector<std::uint64_t> sizes;
    const std::lock_guard lock(content_->mutex);
    for (const BlobKey& key : keys) {
      const auto found = content_->blobs.find(key.text.hex());
      sizes.push_back(found != content_->blobs.end() ? found->second.size() : 0);
    }
    return sizes;
  }
  Status read(const BlobKey& key, std::span<std::byte> into) override {
    if (Status status = call(); !status.ok()) return status;
    const std::lock_guard lock(content_->mutex);
    const auto found = content_->blobs.find(key.text.hex());
    if (found == content_->blobs.end()) return Status(StatusCode::kNotFound, "gone");
    if (found->second.size() != into.size()) return Status(StatusCode::kDataLoss, "of another size");
    std::memcpy(into.data(), found->second.data(), into.size());
    return {};
  }
  Status write(const BlobKey& key, std::span<const std::byte> from) override {
    if (Status status = call(); !status.ok()) return status;
    const std::lock_guard lock(content_->mutex);
    content_->blobs[key.text.hex()].assign(from.begin(), from.end());
    return {};
  }
  void remove(const BlobKey& key) override {
    const std::lock_guard lock(content_->mutex);
    content_->blobs.erase(key.text.hex());
  }
  bool answers_at_once() const override { return false; }
  bool usable() const override { return true; }
  void touch(const BlobKey&) override {}
  BlobUsage usage() const override { return {}; }
  std::string_view name() const override { return "redis"; }

 private:
  Status call() const {
    if (content_->before) content_->before();
    while (content_->holds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(content_->milliseconds));
    return content_->fails ? Status(StatusCode::kIo, "no connection") : Status();
  }
  std::shared_ptr<Content> content_;
};

}  // namespace kvasir::test

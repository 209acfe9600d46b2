#include "tiers/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "tiers/faulty_file.h"
#include "tiers/spill_files.h"

namespace kvasir::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
constexpr std::size_t kPart = SpillFile::kPartBytes;

std::string scratch_folder() {
  return std::filesystem::temp_directory_path().string();
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Writes parts, which have these bytes.
std::shared_ptr<SpilledParts> write_all(SpillFile& file, const std::vector<std::vector<std::byte>>& parts) {
  auto spilled = file.reserve(parts.size());
  for (std::size_t i = 0; spilled != nullptr && i < parts.size(); ++i) {
    std::span<std::byte> buffer = file.buffer();
    for (; buffer.empty(); buffer = file.buffer()) file.poll(milliseconds(1000));
    std::ranges::copy(parts[i], buffer.begin());
    file.write(spilled, i, buffer, parts[i].size());
  }
  for (int polls = 0; spilled != nullptr && !spilled->written() && spilled->status().ok() && polls < 1000; ++polls)
    file.poll(milliseconds(100));
  return spilled;
}

// What is read back, in order of parts; less where a part could not be read.
std::vector<std::vector<std::byte>> read_all(SpillFile& file, const std::shared_ptr<SpilledParts>& spilled,
                                             Status* status) {
  std::vector<std::vector<std::byte>> parts(spilled->size());
  const auto reading = std::make_shared<SpillReading>(&file);
  for (std::size_t asked = 0; asked < parts.size() || reading->under_way() > 0;) {
    while (asked < parts.size() && file.read(spilled, asked, reading)) ++asked;
    file.poll(milliseconds(1000));
    while (const auto part = reading->take()) parts[part->part].assign(part->bytes.begin(), part->bytes.end());
  }
  *status = reading->status();
  return parts;
}

class SpillFileBy : public testing::TestWithParam<TransferMethod> {
 protected:
  void SetUp() override {
    auto file = create_scratch_file(scratch_folder(), GetParam());
    if (!file.ok() && GetParam() == TransferMethod::kUring) GTEST_SKIP() << file.status().message();
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((*file)->method(), GetParam() == TransferMethod::kUring ? "io_uring" : "threads");
    file_ = std::move(*file);
  }
  std::unique_ptr<AsyncFile> file_;
};

TEST_P(SpillFileBy, WhatComesBackIsWhatWentOut) {
  auto file = std::move(*SpillFile::create(std::move(file_), 64 * kPart));
  // More parts than buffers, the last ones short, and a second lot in the room of the first.
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<std::vector<std::byte>> parts;
    for (std::size_t i = 0; i < 40; ++i) parts.push_back(random_bytes(i < 35 ? kPart : 1 + i * 1000, round * 100 + i));
    const auto spilled = write_all(*file, parts);
    ASSERT_NE(spilled, nullptr);
    ASSERT_TRUE(spilled->written()) << spilled->status().message();
    EXPECT_EQ(file->used(), 40 * kPart);
    EXPECT_FALSE(file->has_room(25));
    EXPECT_EQ(file->reserve(25), nullptr);
    Status status;
    EXPECT_EQ(read_all(*file, spilled, &status), parts);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(file->used(), 0u);
}

// A file that may not grow beyond 4 MiB stands for a full disk: the write is cut short there first.
TEST_P(SpillFileBy, AFullDiskIsSaid) {
  auto file = std::move(*SpillFile::create(std::move(file_), 64 * kPart));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{4 * kPart + 1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto spilled = write_all(*file, std::vector<std::vector<std::byte>>(6, random_bytes(kPart, 1)));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, ignored);
  ASSERT_NE(spilled, nullptr);
  EXPECT_FALSE(spilled->written());
  EXPECT_EQ(spilled->status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(spilled->status().message(), HasSubstr("make room"));
}

INSTANTIATE_TEST_SUITE_P(Methods, SpillFileBy, testing::Values(TransferMethod::kUring, TransferMethod::kThreads),
                         [](const auto& info) { return info.param == TransferMethod::kUring ? "Uring" : "Threads"; });

TEST(SpillFile, ADamagedPartIsFoundAndTheOthersAreThere) {
  using Fault = FaultyFile::Fault;
  for (const bool in_write : {true, false}) {
    const auto plan = [&](bool reads, int number) {
      return reads != in_write && number == 2 ? Fault::kDamaged : Fault::kNone;
    };
    auto file = std::move(*SpillFile::create(std::make_unique<FaultyFile>(plan), 64 * kPart));
    std::vector<std::vector<std::byte>> parts;
    for (std::uint64_t i = 0; i < 5; ++i) parts.push_back(random_bytes(70000, i));
    const auto spilled = write_all(*file, parts);
    ASSERT_TRUE(spilled->written());
    Status status;
    const auto back = read_all(*file, spilled, &status);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("checksum"));
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(back[i].empty(), i == 2);
  }
}

TEST(SpillFile, RoomAndBuffersComeBackWhateverIsGivenUp) {
  int ended = 0;
  auto file = std::move(*SpillFile::create(std::make_unique<FaultyFile>(no_fault, 3, &ended), 8 * kPart));
  // Given up while it is written: its room is not used again until the writes have ended.
  auto first = file->reserve(8);
  for (std::size_t i = 0; i < 8; ++i) file->write(first, i, file->buffer(), 1000);
  first.reset();
  EXPECT_EQ(file->reserve(1), nullptr);
  while (ended < 8) file->poll(milliseconds(0));
  EXPECT_EQ(file->used(), 0u);
  // Given up while it is read, and with parts that nobody took.
  const auto spilled = write_all(*file, {random_bytes(5000, 1), random_bytes(6000, 2)});
  for (int round = 0; round < 20; ++round) {
    auto reading = std::make_shared<SpillReading>(file.get());
    ASSERT_TRUE(file->read(spilled, 0, reading));
    ASSERT_TRUE(file->read(spilled, 1, reading));
    for (int polls = 0; polls < round % 7; ++polls) file->poll(milliseconds(0));
    if (round % 3 == 0) reading->take();
    reading.reset();
  }
  for (int polls = 0; polls < 10; ++polls) file->poll(milliseconds(0));
  std::vector<std::span<std::byte>> buffers;
  for (std::span<std::byte> buffer = file->buffer(); !buffer.empty(); buffer = file->buffer())
    buffers.push_back(buffer);
  EXPECT_EQ(buffers.size(), SpillFile::kBuffers);
  for (const std::span<std::byte> buffer : buffers) file->release(buffer);
}

// Says how long it is.
class LengthFile final : public AsyncFile {
 public:
  explicit LengthFile(std::uint64_t* length) : length_(length) {}
  ~LengthFile() override { *length_ = 0; }
  void read(std::uint64_t, std::uint64_t, std::span<std::byte>) override {}
  void write(std::uint64_t tag, std::uint64_t offset, std::span<const std::byte> from) override {
    *length_ = std::max(*length_, offset + from.size());
    ended_.push_back({tag, {}});
  }
  std::vector<FinishedTransfer> finished(milliseconds) override { return std::exchange(ended_, {}); }
  void truncate(std::uint64_t bytes) override { *length_ = std::min(*length_, bytes); }
  std::string_view method() const override { return "length"; }

 private:
  std::uint64_t* length_;
  std::vector<FinishedTransfer> ended_;
};

TEST(SpillFiles, AreBoundedOnTheDiskWhateverComesAndGoes) {
  constexpr std::uint64_t kCapacity = 256 * 1024;
  std::vector<std::unique_ptr<std::uint64_t>> lengths;
  SpillFiles files(
      [&]() -> Result<std::unique_ptr<AsyncFile>> {
        lengths.push_back(std::make_unique<std::uint64_t>(0));
        return {std::make_unique<LengthFile>(lengths.back().get())};
      },
      4, {"a test", "give it more"});
  const auto on_disk = [&] {
    std::uint64_t sum = 0;
    for (const auto& length : lengths) sum += *length;
    return sum;
  };
  const std::size_t sizes[] = {512, 3072, 4096};
  std::vector<std::pair<std::size_t, SpillFiles::Room>> held;
  std::mt19937 random(3);
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const bool fills = step / 400 % 2 == 0;
    if (!held.empty() && random() % 10 < (fills ? 3 : 7)) {
      const std::size_t which = random() % held.size();
      std::swap(held[which], held.back());
      held.pop_back();
    } else {
      const std::size_t size = sizes[random() % 3];
      const std::size_t parts = 1 + random() % 8;
      const std::uint64_t used = files.used();
      auto room = files.reserve(size, parts, kCapacity);
      refused += !room.ok();
      if (!room.ok()) continue;
      EXPECT_EQ(files.used(), used + size * parts);
      for (std::size_t part = 0; part < parts; ++part) {
        room->file->write(room->parts, part, room->file->buffer(), size);
        room->file->poll(milliseconds(0));
      }
      held.emplace_back(size, std::move(*room));
    }
    ASSERT_LE(on_disk(), kCapacity);
    ASSERT_LE(files.used(), files.disk_bytes());
    ASSERT_LE(on_disk(), files.disk_bytes());
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(lengths.size(), 3u);
  // What one size has left is there for another.
  held.clear();
  for (const std::size_t size : sizes) {
    const auto room = files.reserve(size, kCapacity / size, kCapacity);
    EXPECT_TRUE(room.ok()) << size << ": " << room.status().message();
  }
  held.clear();
}

TEST(SpillFile, AFolderThatCannotBeWrittenIsNamed) {
  const auto file = create_scratch_file("/proc/no-such-folder");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(file.status().message(), HasSubstr("'/proc/no-such-folder'"));
}

}  // namespace
}  // namespace kvasir::test

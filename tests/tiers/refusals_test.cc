// What the system refuses: io_uring, and a byte more on a full disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "tiers/async_file.h"
#include "tiers/disk_store.h"
#include "tiers/small_disk.h"
#include "tiers/spill_file.h"

namespace kvasir::test {
namespace {

using std::chrono::milliseconds;

// As the default profiles of containers do.
bool refuse_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Returns 0, or which step went wrong.
int use_file_without_uring(const std::string& folder) {
  if (!refuse_uring()) return 100;
  if (create_scratch_file(folder, TransferMethod::kUring).ok()) return 1;
  auto file = create_scratch_file(folder);
  if (!file.ok() || (*file)->method() != "threads") return 2;
  std::vector<std::byte> out(100'000, std::byte{7}), in(out.size());
  (*file)->write(1, 5000, out);
  for (int part = 0; part < 2; ++part) {
    std::vector<FinishedTransfer> done;
    while (done.empty()) done = (*file)->finished(milliseconds(1000));
    if (!done.front().status.ok()) return 3 + part;
    if (part == 0) (*file)->read(2, 5000, in);
  }
  return in == out ? 0 : 5;
}

TEST(Refusals, WithoutUringThreadsAreUsed) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(use_file_without_uring(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 100) GTEST_SKIP() << "no filter of system calls can be set here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Refusals, AFullDiskIsSaidAndWhatWasWrittenIsThere) {
  const SmallDisk disk(4);
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount a small disk: " << std::strerror(errno);
  for (const TransferMethod method : {TransferMethod::kAuto, TransferMethod::kThreads}) {
    auto file = std::move(*SpillFile::create(std::move(*create_scratch_file(disk.path(), method)), 64u << 20));
    const auto parts = file->reserve(8);
    for (std::size_t part = 0; part < 8; ++part) file->write(parts, part, file->buffer(), SpillFile::kPartBytes);
    for (int polls = 0; polls < 100 && !parts->written() && parts->status().ok(); ++polls)
      file->poll(milliseconds(100));
    EXPECT_EQ(parts->status().code(), StatusCode::kResourceExhausted) << parts->status().message();
    EXPECT_THAT(parts->status().message(), testing::HasSubstr("make room"));
  }
  auto store = std::move(*open_disk_store({disk.path() + "/prefixes", std::uint64_t{1} << 30, {}}));
  const std::vector<std::byte> blob(std::size_t{1} << 20, std::byte{3});
  std::vector<BlobKey> keys;
  Status status;
  for (std::uint64_t i = 0; status.ok() && i < 8; ++i) {
    keys.push_back({{1, 1}, {2, 2}, {3, i}, 0});
    status = store->write(keys.back(), blob);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_GE(keys.size(), 3u);
  const auto sizes = store->sizes(keys);
  ASSERT_TRUE(sizes.ok());
  std::vector<std::byte> read(blob.size());
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) EXPECT_TRUE(store->read(keys[i], read).ok() && read == blob);
  EXPECT_EQ(sizes->back(), 0u);
  // With room again, it goes on.
  store->remove(keys.front());
  EXPECT_TRUE(store->write(keys.back(), blob).ok());
}

}  // namespace
}  // namespace kvasir::test

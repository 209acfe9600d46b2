// The memory that is available, on systems made of files.
#include "base/system_memory.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "support/mebibyte.h"

namespace kvasir {
namespace {

using test::kMiB;

constexpr std::uint64_t kSystem = 4096 * kMiB;  // MemAvailable of every system here

std::string mib(std::uint64_t count) {
  return std::to_string(count * kMiB) + "\n";
}

class SystemMemory : public ::testing::Test {
 protected:
  SystemMemory() : root_(testing::TempDir() + "kvasir-system-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root_);
    put("/proc/meminfo",
        "MemTotal:       16384000 kB\nMemFree:        1 kB\nMemAvailable:   4194304 kB\nCached: 7 kB\n");
    address_space("unlimited", 100);
  }
  ~SystemMemory() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(root_ + path); }

  void address_space(const std::string& limit, std::uint64_t mapped_mib) const {
    put("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max processes             96195                96195                processes \n"
        "Max address space         " +
            limit + "            unlimited            bytes     \n");
    put("/proc/self/status", "Name:\tkvasir\nVmPeak:\t99999999 kB\nVmSize:\t  " + std::to_string(mapped_mib * 1024) +
                                 " kB\nVmRSS:\t 7 kB\n");
  }
  // Of version 2, in /sys/fs/cgroup.
  void group(const std::string& path, const std::string& limit, const std::string& used,
             const std::string& stat = "anon 5\n") const {
    put("/sys/fs/cgroup" + path + "/memory.max", limit);
    put("/sys/fs/cgroup" + path + "/memory.current", used);
    put("/sys/fs/cgroup" + path + "/memory.stat", stat);
  }
  // Of version 1.
  void old_group(const std::string& path, const std::string& limit, const std::string& used,
                 const std::string& stat = "cache 5\n") const {
    put("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes", limit);
    put("/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes", used);
    put("/sys/fs/cgroup/memory" + path + "/memory.stat", stat);
  }
  void member_of(const std::string& lines) const { put("/proc/self/cgroup", lines); }

  std::optional<std::uint64_t> available(std::uint64_t address_space = 0) const {
    return available_memory(root_, address_space);
  }

 private:
  std::string root_;
};

TEST_F(SystemMemory, IsWhatTheSystemHasWithoutLimits) {
  EXPECT_EQ(available(), kSystem);
  member_of("0::/\n");
  EXPECT_EQ(available(), kSystem);
  member_of("4:memory:/\n1:cpu:/\n0::/\n");
  EXPECT_EQ(available(), kSystem);
}

TEST_F(SystemMemory, OfAGroupIsItsLimitLessWhatCannotBeReclaimed) {
  member_of("0::/a\n");
  group("/a", mib(64), mib(24));
  EXPECT_EQ(available(), 40 * kMiB);
  group("/a", mib(64), mib(24),
        "file 9\nactive_file " + mib(2) + "inactive_file " + mib(10) + "slab_reclaimable " + mib(3));
  EXPECT_EQ(available(), 55 * kMiB);
  group("/a", mib(64), mib(64));
  EXPECT_EQ(available(), 0u);
  group("/a", mib(64), mib(65));
  EXPECT_EQ(available(), 0u);
  group("/a", "max\n", mib(24));
  EXPECT_EQ(available(), kSystem);
  put("/sys/fs/cgroup/a/memory.high", mib(30));
  EXPECT_EQ(available(), 6 * kMiB);
  put("/sys/fs/cgroup/a/memory.high", "max\n");
  EXPECT_EQ(available(), kSystem);
}

TEST_F(SystemMemory, OfAGroupOfVersion1) {
  member_of("11:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n");
  old_group("", "9223372036854771712\n", mib(9000));
  old_group("/a", "9223372036854771712\n", mib(9000));
  old_group("/a/b", "9223372036854771712\n", mib(9000));
  EXPECT_EQ(available(), kSystem);
  old_group("/a/b", mib(64), mib(50),
            "inactive_file 1\ntotal_active_file " + mib(5) + "total_inactive_file " + mib(20));
  EXPECT_EQ(available(), 39 * kMiB);
  // A limit above that is not visible.
  old_group("/a/b", mib(64), mib(20), "hierarchical_memory_limit " + mib(48));
  EXPECT_EQ(available(), 28 * kMiB);
  member_of("7:cpu,memory,freezer:/a/b\n");
  EXPECT_EQ(available(), 28 * kMiB);
  member_of("7:cpu:/a/b\n");
  EXPECT_EQ(available(), kSystem) << "another controller's group";
}

TEST_F(SystemMemory, TheTightestGroupCounts) {
  member_of("0::/a/b/c\n");
  group("/a", mib(100), mib(90));
  group("/a/b", "max\n", mib(80));
  group("/a/b/c", mib(64), mib(1));
  EXPECT_EQ(available(), 10 * kMiB);
  group("/a", mib(200), mib(90));
  EXPECT_EQ(available(), 63 * kMiB);
  member_of("5:memory:/a/b\n0::/\n");
  old_group("/a", mib(32), mib(2));
  old_group("/a/b", mib(64), mib(1));
  EXPECT_EQ(available(), 30 * kMiB);
  group("/elsewhere", mib(1), mib(1));
  EXPECT_EQ(available(), 30 * kMiB);
}

TEST_F(SystemMemory, BothVersionsCountSideBySide) {
  member_of("5:memory:/a\n0::/u\n");
  old_group("/a", mib(64), mib(4));
  put("/sys/fs/cgroup/unified/u/memory.max", mib(40));
  put("/sys/fs/cgroup/unified/u/memory.current", mib(4));
  EXPECT_EQ(available(), 36 * kMiB);
}

TEST_F(SystemMemory, InAContainerTheMountIsItsGroup) {
  // With a namespace of its own.
  member_of("0::/\n");
  group("", mib(64), mib(14));
  EXPECT_EQ(available(), 50 * kMiB);
  // The path is that of the host: only what is mounted here can be seen.
  member_of("0::/system.slice/docker-0123.scope\n");
  EXPECT_EQ(available(), 50 * kMiB);
  // A process that entered from outside.
  member_of("0::/../other\n");
  EXPECT_EQ(available(), 50 * kMiB);
  remove("/sys/fs/cgroup");
  old_group("", mib(64), mib(24));
  member_of("4:memory:/docker/0123\n");
  EXPECT_EQ(available(), 40 * kMiB);
}

TEST_F(SystemMemory, APathNeverLeadsOutOfTheMount) {
  put("/sys/secret/memory.max", "1\n");
  group("/a", mib(64), mib(4));
  member_of("0::/a/../../../secret\n");
  EXPECT_EQ(available(), kSystem);
  member_of("0::/a/./..\n");
  EXPECT_EQ(available(), kSystem);
  member_of("0:://a//.//\n");
  EXPECT_EQ(available(), 60 * kMiB);
}

TEST_F(SystemMemory, WhatIsMissingBoundsNothing) {
  member_of("0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", mib(64));
  EXPECT_EQ(available(), 64 * kMiB);
  remove("/sys/fs/cgroup/a/memory.max");
  put("/sys/fs/cgroup/a/memory.current", mib(64));
  EXPECT_EQ(available(), kSystem);
  remove("/proc/meminfo");
  EXPECT_EQ(available(), std::nullopt) << "nothing is known";
  group("/a", mib(64), mib(4));
  EXPECT_EQ(available(), 60 * kMiB);
  remove("/proc");
  EXPECT_EQ(available(), std::nullopt);
}

TEST_F(SystemMemory, HostileContentsBoundNothing) {
  member_of("0::/a\n");
  for (const std::string& limit :
       {std::string(), std::string("\n"), std::string("garbage"), std::string("-1"), std::string("64MiB"),
        std::string("99999999999999999999999999"), std::string("0x10"), std::string(3 * kMiB, '9')}) {
    group("/a", limit, mib(4));
    EXPECT_EQ(available(), kSystem) << limit.substr(0, 40);
  }
  // Reclaimable files of more than is used; a usage that is no number.
  group("/a", mib(64), mib(4), "inactive_file 18446744073709551615\nslab_reclaimable 18446744073709551615\n");
  EXPECT_EQ(available(), 64 * kMiB);
  group("/a", mib(64), "many", "inactive_file\nslab_reclaimable x");
  EXPECT_EQ(available(), 64 * kMiB);
  group("/a", mib(64), "18446744073709551615", "");
  EXPECT_EQ(available(), 0u);
  group("/a", mib(64), mib(4));
  for (const std::string& lines : {std::string(), std::string("\n\n"), std::string("0"), std::string("0:"),
                                   std::string(":::::"), std::string(9000, ':'), "0::/" + std::string(100000, 'a'),
                                   std::string("\0\0:memory", 9), std::string("4:memory"), std::string("1::/a")}) {
    member_of(lines);
    EXPECT_EQ(available(), kSystem) << lines.substr(0, 40);
  }
  remove("/proc/self/cgroup");
  put("/proc/self/cgroup/is-a-folder", "");
  EXPECT_EQ(available(), kSystem);
  for (const char* text : {"MemAvailable:", "MemAvailable: lots", "MemAvailable: 18446744073709551615 kB"}) {
    put("/proc/meminfo", text);
    EXPECT_EQ(available(), std::nullopt) << text;
  }
}

TEST_F(SystemMemory, AddressSpaceIsBounded) {
  address_space("1073741824", 100);
  EXPECT_EQ(available(), 924 * kMiB);
  address_space("104857600", 100);
  EXPECT_EQ(available(), 0u);
  address_space("1", 100);
  EXPECT_EQ(available(), 0u);
  address_space("many", 100);
  EXPECT_EQ(available(), kSystem);
  address_space("1073741824", 100);
  EXPECT_EQ(available(24 * kMiB), 900 * kMiB) << "less what else is to be mapped";
  EXPECT_EQ(available(924 * kMiB), 0u);
  address_space("unlimited", 100);
  EXPECT_EQ(available(24 * kMiB), kSystem) << "the rest is not limited by it";
  address_space("1073741824", 100);
  remove("/proc/self/status");
  EXPECT_EQ(available(), 1024 * kMiB);
}

// On the machine itself.
TEST(AvailableMemory, StaysBelowTheLimitOnAddressSpace) {
  EXPECT_GT(available_memory().value_or(0), 0u);
  std::uint64_t pages = 0;  // mapped
  ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &old), 0);
  rlimit tight = old;
  tight.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + 256 * kMiB;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  const std::uint64_t left = memory_bound();
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &old), 0);
  EXPECT_LE(left, 256 * kMiB);
  EXPECT_GT(left, 128 * kMiB);
}

TEST(StackBytes, CoverWhatAThreadHas) {
  std::size_t of_thread = 0;
  std::thread([&] {
    pthread_attr_t own;
    if (::pthread_getattr_np(::pthread_self(), &own) != 0) return;
    ::pthread_attr_getstacksize(&own, &of_thread);
    ::pthread_attr_destroy(&own);
  }).join();
  EXPECT_GT(of_thread, 0u);
  EXPECT_GE(stack_bytes(2), of_thread);
  EXPECT_LE(stack_bytes(2), of_thread + kMiB);
  EXPECT_EQ(stack_bytes(1), 0u);
  EXPECT_EQ(stack_bytes(5), 4 * stack_bytes(2));
}

}  // namespace
}  // namespace kvasir

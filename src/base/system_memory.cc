#include "base/system_memory.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostRead = std::size_t{1} << 20;  // of one of the system's files, bytes

std::uint64_t left_of(std::uint64_t limit, std::uint64_t used) {
  return limit > used ? limit - used : 0;
}

// Returns the file's text, or "" if it cannot be read.
std::string text_of(const std::string& path) {
  Result<std::string> text = read_file(path, kMostRead);
  return text.ok() ? std::move(*text) : std::string();
}

// Removes and returns everything up to the next `separator`, which is removed too.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// Returns the number at the start of a text, behind any blanks; nullopt if there is none or it exceeds 64 bits.
std::optional<std::uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool ends = end == text.data() + text.size() || *end == ' ' || *end == '\t' || *end == '\n';
  if (error != std::errc() || !ends) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  return number_at(text_of(path));
}

// Returns the number behind `key` at the start of a line.
std::optional<std::uint64_t> number_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = take(text, '\n');
    if (line.starts_with(key)) return number_at(line.substr(key.size()));
  }
  return std::nullopt;
}

// As number_of, for a number in KiB; returns bytes.
std::optional<std::uint64_t> kib_of(std::string_view text, std::string_view key) {
  const std::optional<std::uint64_t> kib = number_of(text, key);
  if (!kib || *kib > kUnlimited / 1024) return std::nullopt;
  return *kib * 1024;
}

// Takes the pages of files, which the system can take back, from what a group uses. As in MemAvailable, those that were
// used of late (active) are among them.
std::uint64_t without_files(std::uint64_t used, std::string_view stat, std::string_view prefix) {
  for (const char* kind : {"inactive_file ", "active_file "})
    used = left_of(used, number_of(stat, std::string(prefix) + kind).value_or(0));
  return used;
}

// Returns a group's own bound, without its parents'.
std::uint64_t left_in_group_v1(const std::string& folder) {
  const std::string stat = text_of(folder + "/memory.stat");
  // The smallest limit of the group and its parents, whether these are visible or not.
  const std::uint64_t limit = std::min(number_in(folder + "/memory.limit_in_bytes").value_or(kUnlimited),
                                       number_of(stat, "hierarchical_memory_limit ").value_or(kUnlimited));
  if (limit == kUnlimited) return kUnlimited;
  const std::uint64_t used = number_in(folder + "/memory.usage_in_bytes").value_or(0);
  return left_of(limit, without_files(used, stat, "total_"));
}

std::uint64_t left_in_group_v2(const std::string& folder) {
  // Above `high` a process is not killed, but slowed down until it hardly runs.
  const std::uint64_t limit = std::min(number_in(folder + "/memory.max").value_or(kUnlimited),
                                       number_in(folder + "/memory.high").value_or(kUnlimited));
  if (limit == kUnlimited) return kUnlimited;
  const std::string stat = text_of(folder + "/memory.stat");
  const std::uint64_t used = number_in(folder + "/memory.current").value_or(0);
  return left_of(limit, left_of(without_files(used, stat, ""), number_of(stat, "slab_reclaimable ").value_or(0)));
}

// Returns the folders of a group and those above it, below and with `mount`. A path that leads out of the mount names a
// group that is not visible, so only the mount is left.
std::vector<std::string> folders_up_from(const std::string& mount, std::string_view path) {
  std::vector<std::string> folders = {mount};
  while (!path.empty()) {
    const std::string_view name = take(path, '/');
    if (name == "..") return {mount};
    if (!name.empty() && name != ".") folders.push_back(folders.back() + "/" + std::string(name));
  }
  return folders;
}

std::uint64_t left_in_groups(const std::string& root) {
  const std::string text = text_of(root + "/proc/self/cgroup");
  const std::string mounts = root + "/sys/fs/cgroup";
  std::uint64_t left = kUnlimited;
  for (std::string_view rest = text; !rest.empty();) {
    // HIERARCHY:CONTROLLERS:PATH; of version 2 without controllers.
    std::string_view line = take(rest, '\n');
    const std::string_view hierarchy = take(line, ':');
    std::string_view controllers = take(line, ':');
    if (line.size() > 4096) continue;  // no path
    if (hierarchy == "0" && controllers.empty()) {
      for (const std::string& mount : {mounts, mounts + "/unified"})
        for (const std::string& folder : folders_up_from(mount, line)) left = std::min(left, left_in_group_v2(folder));
    }
    while (!controllers.empty()) {
      if (take(controllers, ',') != "memory") continue;
      for (const std::string& folder : folders_up_from(mounts + "/memory", line))
        left = std::min(left, left_in_group_v1(folder));
    }
  }
  return left;
}

std::uint64_t left_of_address_space(const std::string& root, std::uint64_t others) {
  // "Max address space         SOFT                 HARD                 bytes", where a limit may be "unlimited".
  const auto limit = number_of(text_of(root + "/proc/self/limits"), "Max address space ");
  if (!limit) return kUnlimited;
  return left_of(left_of(*limit, kib_of(text_of(root + "/proc/self/status"), "VmSize:").value_or(0)), others);
}

std::uint64_t left_in_system(const std::string& root) {
  if (const auto bytes = kib_of(text_of(root + "/proc/meminfo"), "MemAvailable:")) return *bytes;
  if (!root.empty()) return kUnlimited;
  const long pages = ::sysconf(_SC_AVPHYS_PAGES);
  const long size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : kUnlimited;
}

}  // namespace

std::optional<std::uint64_t> available_memory(const std::string& root, std::uint64_t address_space) {
  const std::uint64_t left =
      std::min({left_in_system(root), left_in_groups(root), left_of_address_space(root, address_space)});
  if (left == kUnlimited) return std::nullopt;
  return left;
}

std::uint64_t memory_bound(std::uint64_t address_space) {
  return available_memory("", address_space).value_or(kUnlimited);
}

bool address_space_is_limited() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

std::uint64_t stack_bytes(int threads) {
  pthread_attr_t defaults;
  if (threads <= 1 || ::pthread_getattr_default_np(&defaults) != 0) return 0;
  std::size_t stack = 0;
  std::size_t guard = 0;
  ::pthread_attr_getstacksize(&defaults, &stack);
  ::pthread_attr_getguardsize(&defaults, &guard);
  ::pthread_attr_destroy(&defaults);
  return static_cast<std::uint64_t>(threads - 1) * (stack + guard);
}

std::uint64_t memory_for_run(int threads) {
  // Address space set aside for texts, tables and the allocator's own gaps, bytes.
  constexpr std::uint64_t kReserve = std::uint64_t{4} << 20;
  return memory_bound(stack_bytes(threads) + kReserve);
}

}  // namespace kvasir

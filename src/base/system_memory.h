// How much memory the system would give to this process.
// Thread-safety: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir {

// Returns the bytes that this process could still take now without being refused or killed, as far as the system says:
// the smallest of
//   - MemAvailable of /proc/meminfo;
//   - for the process's control group and each group above it that is visible: the limit less what is used and cannot
//     be reclaimed. Groups with a memory controller of version 1 (memory.limit_in_bytes, hierarchical_memory_limit) and
//     2 (memory.max and memory.high) count;
//   - the limit on address space (ulimit -v) less what is mapped and `address_space` more, which the caller is
//     about to map for other purposes.
// What is missing or malformed bounds nothing. Returns 0 if more than a limit is used already, and nullopt if nothing
// at all is known.
//
// `root` is put in front of /proc and /sys/fs/cgroup. Groups are looked for where systems mount them: version 2 in
// /sys/fs/cgroup or its folder unified, version 1 in its folder memory. In a container the process's path may not exist
// there; then the nearest parent that does is the first one that counts, in the end the mount itself.
std::optional<std::uint64_t> available_memory(const std::string& root = "", std::uint64_t address_space = 0);

// Returns the same of the system itself, and the largest number if nothing is known.
std::uint64_t memory_bound(std::uint64_t address_space = 0);

// Returns whether this process has a limit on address space.
bool address_space_is_limited();

// Returns the address space that `threads` of a pool, the caller among them, map for their stacks.
std::uint64_t stack_bytes(int threads);

// Returns the bytes that a run may take for weights, cache and workspace. Under a limit on address space, the stacks of
// `threads` threads that are still to be started (the caller is one of them) and a reserve for everything else that is
// allocated are set aside.
std::uint64_t memory_for_run(int threads);

}  // namespace kvasir

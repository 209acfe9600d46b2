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
//   - for the process's control group and each visible group above it: the limit less what is used and cannot be
//     reclaimed. Memory controllers of version 1 (memory.limit_in_bytes, hierarchical_memory_limit) and version 2
//     (memory.max and memory.high) count;
//   - the limit on address space (ulimit -v) less what is mapped and less `address_space`, which the caller is about to
//     map for other purposes.
// Missing or malformed figures bound nothing. Returns 0 if more than a limit is in use, and nullopt if nothing is
// known.
//
// `root` is prepended to /proc and /sys/fs/cgroup. Groups are looked for where systems mount them: version 2 in
// /sys/fs/cgroup or its folder unified, version 1 in its folder memory. If the process's path does not exist there, as
// in some containers, the nearest existing parent counts, or else the mount itself.
std::optional<std::uint64_t> available_memory(const std::string& root = "", std::uint64_t address_space = 0);

// Returns the same for the real system; the largest number if nothing is known.
std::uint64_t memory_bound(std::uint64_t address_space = 0);

// Returns whether this process has a limit on address space.
bool address_space_is_limited();

// Returns the address space for the stacks of a pool of `threads`, the caller included.
std::uint64_t stack_bytes(int threads);

// Returns the bytes that a run may take for weights, cache and workspace. Under a limit on address space this leaves
// out the stacks of a pool of `threads` that is still to be started (the caller included) and a reserve for all other
// allocations.
std::uint64_t memory_for_run(int threads);

}  // namespace kvasir

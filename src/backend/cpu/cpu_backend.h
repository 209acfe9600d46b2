// The backend of this machine's processor: a pool of threads and a kernel table.
// Thread-safety: as Backend.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/thread_pool.h"

namespace kvasir {

// `kernels` outlives the backend.
std::unique_ptr<Backend> make_cpu_backend(const BackendShape& shape, const KernelTable* kernels, ThreadPool* threads);

// Returns the bytes that loading these weights for a kernel table allocates.
std::uint64_t cpu_weight_bytes(std::span<const WeightPart> parts, const KernelTable& kernels = *find_kernels("auto"));

// Returns what Backend::adapter_bytes does, without a backend.
std::uint64_t cpu_adapter_bytes(std::span<const LowRankPart> parts);

// Returns what Backend::workspace_bytes does, without a backend.
std::uint64_t cpu_workspace_bytes(const BackendShape& shape, const Backend::WorkspaceRequest& request, int threads);

}  // namespace kvasir

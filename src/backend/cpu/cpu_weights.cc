#include "backend/cpu/cpu_weights.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "tensor/dequantize.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kAlign = 64;

std::uint64_t part_bytes(const WeightPacking& packing, const WeightPart& part) {
  return part.is_vector ? static_cast<std::uint64_t>(part.outputs) * sizeof(float)
                        : packing.bytes(part.type, part.outputs, part.inputs);
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

void copy_vector(const WeightPart& part, std::byte* to) {
  const std::size_t size = dtype_traits(part.type).block_bytes;
  for (int i = 0; i < part.outputs; ++i) {
    const auto row = static_cast<std::size_t>(part.order.row(i));
    const float value = read_element(part.type, part.bytes.data() + row * size);
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
  }
}

}  // namespace

CpuWeights::~CpuWeights() {
  if (own_) ::munmap(data_, bytes_);
}

Status CpuWeights::lock() const {
  if (::mlock(data_, bytes_) == 0) return {};
  const int error = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (error == EPERM || limit.rlim_cur < bytes_)
    return exhausted(
        "the system lets this process lock {} bytes of memory, and the weights take {}; raise the limit (ulimit -l) or "
        "start without locking",
        static_cast<std::uint64_t>(limit.rlim_cur), bytes_);
  return exhausted("cannot lock the {} bytes of the weights in memory: {}", bytes_, std::strerror(error));
}

std::uint64_t CpuWeights::bytes_of(const WeightPacking& packing, std::span<const WeightPart> parts) {
  std::uint64_t bytes = 0;
  for (const WeightPart& part : parts) bytes += aligned(part_bytes(packing, part));
  return bytes;
}

// Packs matrices in slices, so that the file's memory can be given back to the system soon.
Status CpuWeights::load(const WeightPacking& packing, std::span<const WeightPart> parts, ThreadPool& threads,
                        const Backend::LoadOptions& options) {
  constexpr int kPanelsPerTask = 16;
  constexpr std::uint64_t kSliceBytes = std::uint64_t{32} << 20;
  KVASIR_CHECK(data_ == nullptr);
  bytes_ = bytes_of(packing, parts);
  data_ = options.memory;
  if (data_ == nullptr) {
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return exhausted(
          "the system has no {} bytes for the model's weights; close other programs or use a smaller model", bytes_);
    data_ = static_cast<std::byte*>(memory);
    own_ = true;
    ::madvise(memory, bytes_, MADV_HUGEPAGE);
  }
  const auto loaded = [&](std::uint64_t bytes) {
    if (options.loaded) options.loaded(bytes);
  };
  weights_.resize(parts.size());
  std::uint64_t offset = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const WeightPart& part = parts[p];
    std::byte* to = data_ + offset;
    offset += aligned(part_bytes(packing, part));
    if (part.is_vector) {
      if (!options.loaded_before) copy_vector(part, to);
      weights_[p].vector = reinterpret_cast<const float*>(to);
      loaded(part_bytes(packing, part));
      continue;
    }
    PackedMatrix& matrix = weights_[p].matrix;
    matrix = {part.type, part.outputs, part.inputs, to};
    if (options.loaded_before) continue;
    const std::uint64_t panel_bytes = matrix.panel_bytes();
    const int slice = static_cast<int>(std::max<std::uint64_t>(kPanelsPerTask, kSliceBytes / panel_bytes));
    for (int begin = 0; begin < matrix.panels(); begin += slice) {
      const int end = std::min(matrix.panels(), begin + slice);
      threads.parallel_for((end - begin + kPanelsPerTask - 1) / kPanelsPerTask, [&](int task) {
        const int first = begin + task * kPanelsPerTask;
        packing.pack(matrix, part.bytes.data(), part.order, first, std::min(end, first + kPanelsPerTask), to);
      });
      // Rows have the same size packed and in the file. Rows that a row order takes from outside the slice are read
      // again.
      const std::uint64_t row_bytes = panel_bytes / kPanel;
      if (options.read)
        options.read(p, static_cast<std::uint64_t>(part.order.first + begin * kPanel) * row_bytes,
                     static_cast<std::uint64_t>((end - begin) * kPanel) * row_bytes);
      loaded(static_cast<std::uint64_t>(end - begin) * panel_bytes);
    }
  }
  return {};
}

}  // namespace kvasir

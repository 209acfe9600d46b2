#include "replay/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/counted.h"
#include "base/status.h"

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little, "traces are read as they are stored");

constexpr double kMostSumError = 0.01;  // softmax rows computed in bf16 stay within 0.004

std::uint64_t floats_of(const std::array<std::int64_t, 4>& shape) {
  std::uint64_t floats = 1;
  for (const std::int64_t size : shape) floats *= static_cast<std::uint64_t>(size);
  return floats;
}

}  // namespace

std::array<std::int64_t, 4> TraceShape::of(TraceArray array) const {
  switch (array) {
    case TraceArray::kWeights: return {layers, heads, tokens, tokens};
    case TraceArray::kRotations: return {layers, kv_heads, tokens, 1};
    case TraceArray::kQueries: return {layers, heads, tokens, head_dim};
    case TraceArray::kTurns: return {layers, 1, 1, 2 + frequencies};
    default: return {layers, kv_heads, tokens, head_dim};
  }
}

std::uint64_t TraceShape::bytes() const {
  std::uint64_t floats = 0;
  for (int i = 0; i < arrays(); ++i) floats += floats_of(of(TraceArray{i}));
  return floats * sizeof(float);
}

std::uint64_t TraceShape::place(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token) const {
  const auto [all, own, rows, width] = of(array);
  KVASIR_CHECK(static_cast<int>(array) < arrays() && layer >= 0 && layer < all && head >= 0 && head < own &&
               token >= 0 && token < rows);
  return static_cast<std::uint64_t>(((layer * own + head) * rows + token) * width);
}

Result<AttentionTrace> AttentionTrace::open(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  auto file = std::make_shared<const MappedFile>(std::move(mapped));
  KVASIR_ASSIGN_OR_RETURN(AttentionTrace trace, parse(file->bytes(), path));
  trace.file_ = std::move(file);
  return trace;
}

Result<AttentionTrace> AttentionTrace::parse(std::span<const std::byte> bytes, std::string name) {
  AttentionTrace trace;
  trace.path_ = std::move(name);
  KVASIR_ASSIGN_OR_RETURN(const NpyHeader header, parse_npy_header(bytes, trace.path_));
  KVASIR_RETURN_IF_ERROR(trace.set_shape(header));
  const std::span<const std::byte> data = bytes.subspan(header.data_offset);
  if (data.size() < header.data_bytes)
    return data_loss("'{}' is truncated: {} of weights instead of {}", trace.path_, counted(std::ssize(data), "byte"),
                     header.data_bytes);
  trace.data_.front() = data.first(header.data_bytes);
  if (data.size() > header.data_bytes) KVASIR_RETURN_IF_ERROR(trace.parse_kv(data.subspan(header.data_bytes)));
  return trace;
}

// The arrays behind the weights.
Status AttentionTrace::parse_kv(std::span<const std::byte> bytes) {
  if (bytes.front() != std::byte{0x93})
    return data_loss("'{}' is damaged: {} too many behind the array", path_, counted(std::ssize(bytes), "byte"));
  for (int i = 1; i < kTraceArrays && !(bytes.empty() && TraceArray{i} == TraceArray::kTurns); ++i) {
    KVASIR_ASSIGN_OR_RETURN(const NpyHeader header, parse_npy_header(bytes, path_));
    if (i == 1 && header.shape.size() == 4) {
      shape_.kv_heads = header.shape[1];
      shape_.head_dim = header.shape[3];
    }
    if (TraceArray{i} == TraceArray::kTurns && header.shape.size() == 4)
      shape_.frequencies = std::clamp<std::int64_t>(header.shape[3] - 2, 0, shape_.head_dim / 2);
    const std::array<std::int64_t, 4> expected = shape_.of(TraceArray{i});
    if (!std::ranges::equal(header.shape, expected) || header.data_bytes == 0 || shape_.heads % shape_.kv_heads != 0)
      return unsupported("'{}': array {} has the shape {}, which does not go with attention of {}", path_, i + 1,
                         npy_shape_text(header.shape), npy_shape_text(shape_.of(TraceArray::kWeights)));
    bytes = bytes.subspan(header.data_offset);
    if (bytes.size() < header.data_bytes)
      return data_loss("'{}' is truncated: {} of array {} instead of {}", path_, counted(std::ssize(bytes), "byte"),
                       i + 1, header.data_bytes);
    data_[static_cast<std::size_t>(i)] = bytes.first(header.data_bytes);
    bytes = bytes.subspan(header.data_bytes);
  }
  if (bytes.empty()) return {};
  return data_loss("'{}' is damaged: {} too many behind the arrays", path_, counted(std::ssize(bytes), "byte"));
}

Status AttentionTrace::set_shape(const NpyHeader& header) {
  const std::vector<std::int64_t>& shape = header.shape;
  const std::string found = npy_shape_text(shape);
  if (shape.size() != 4 || shape[2] != shape[3])
    return unsupported("'{}' has the shape {}; attention weights have [layers, heads, T, T]", path_, found);
  if (header.data_bytes == 0) return unsupported("'{}' has the shape {}: there is nothing in it", path_, found);
  if (shape[3] > kMostTraceTokens)
    return unsupported("'{}' has {} tokens (shape {}); a trace has at most {}", path_, shape[3], found,
                       kMostTraceTokens);
  shape_ = {.layers = shape[0], .heads = shape[1], .tokens = shape[3]};
  return {};
}

void AttentionTrace::read(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token,
                          std::span<float> floats) const {
  // The headers may leave the floats misaligned, so copy bytes.
  const std::uint64_t first = shape_.place(array, layer, head, token);
  KVASIR_CHECK(std::ssize(floats) <= shape_.of(array)[3]);
  if (!floats.empty())
    std::memcpy(floats.data(), data_[static_cast<std::size_t>(array)].data() + first * sizeof(float),
                floats.size_bytes());
}

QueryTurns AttentionTrace::turns() const {
  if (!shape_.has_turns()) return nullptr;
  std::vector<QueryTurn> turns;
  std::vector<float> row(static_cast<std::size_t>(shape_.of(TraceArray::kTurns)[3]));
  for (std::int64_t layer = 0; layer < layers(); ++layer) {
    read(TraceArray::kTurns, layer, 0, 0, row);
    turns.push_back({{row.begin() + 2, row.end()}, row[1], row[0]});
  }
  return std::make_shared<const std::vector<QueryTurn>>(std::move(turns));
}

Status AttentionTrace::check_row(std::int64_t layer, std::int64_t head, std::int64_t row,
                                 std::span<float> weights) const {
  read(layer, head, row, weights);
  const auto seen = static_cast<std::size_t>(row) + 1;
  std::array<double, 4> sums{};
  bool sound = true;
  for (std::size_t j = 0; j < seen; ++j) {
    sums[j % sums.size()] += weights[j];
    sound &= weights[j] >= 0 && weights[j] <= std::numeric_limits<float>::max();
  }
  for (std::size_t j = seen; j < weights.size(); ++j) sound &= weights[j] == 0;
  const double sum = sums[0] + sums[1] + sums[2] + sums[3];
  const double least = sinks_ ? 0 : 1 - kMostSumError;
  if (sound && sum >= least && sum <= 1 + kMostSumError && sum > 0) return {};
  for (std::size_t j = 0; j < weights.size() && !sound; ++j) {
    if (j < seen && !(weights[j] >= 0 && weights[j] <= std::numeric_limits<float>::max()))
      return data_loss("'{}': the weight at [{}, {}, {}, {}] is {}; weights of a softmax are 0 or more", path_, layer,
                       head, row, j, weights[j]);
    if (j >= seen && weights[j] != 0)
      return data_loss("'{}': the weight at [{}, {}, {}, {}] is {}; token {} cannot see a later one", path_, layer,
                       head, row, j, weights[j], row);
  }
  const bool may_have_sinks = !sinks_ && sum > 0 && sum < 1;
  return data_loss("'{}': the weights of row [{}, {}, {}] sum to {:.6g}; those of a softmax sum to 1{}", path_, layer,
                   head, row, sum, may_have_sinks ? ", or to less in models with attention sinks, with --sinks" : "");
}

Status AttentionTrace::check(const Progress& progress) const {
  std::vector<float> weights(static_cast<std::size_t>(tokens()));
  for (std::int64_t layer = 0; layer < layers(); ++layer)
    for (std::int64_t head = 0; head < heads(); ++head) {
      if (progress && !progress(layer * heads() + head, layers() * heads()))
        return Status(StatusCode::kCancelled, "stopped");
      for (std::int64_t row = 0; row < tokens(); ++row) KVASIR_RETURN_IF_ERROR(check_row(layer, head, row, weights));
    }
  for (int array = 1; array < shape_.arrays(); ++array) KVASIR_RETURN_IF_ERROR(check_array(TraceArray{array}));
  return {};
}

Status AttentionTrace::check_array(TraceArray array) const {
  const auto [layers, heads, tokens, width] = shape_.of(array);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t layer = 0; layer < layers; ++layer)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t token = 0; token < tokens; ++token) {
        read(array, layer, head, token, row);
        for (const float x : row)
          if (!std::isfinite(x) || (array == TraceArray::kRotations && std::abs(x) > 0x1p24F))
            return data_loss("'{}': {} in row [{}, {}, {}] of array {}", path_, x, layer, head, token,
                             static_cast<int>(array) + 1);
      }
  return {};
}

Result<AttentionTraceWriter> AttentionTraceWriter::open(const std::string& path, const TraceShape& shape) {
  std::int64_t bytes = 0;
  for (int i = 0; i < shape.arrays(); ++i) {
    std::int64_t own = sizeof(float);
    bool fits = true;
    for (const std::int64_t size : shape.of(TraceArray{i}))
      fits = fits && size >= 1 && !__builtin_mul_overflow(own, size, &own);
    if (!fits || __builtin_add_overflow(bytes, own, &bytes))
      return invalid_argument("a trace of {} layers, {} heads and {} tokens is not possible", shape.layers, shape.heads,
                              shape.tokens);
  }
  if (shape.tokens > kMostTraceTokens)
    return invalid_argument("a trace has at most {} tokens, not {}", kMostTraceTokens, shape.tokens);

  KVASIR_ASSIGN_OR_RETURN(const ReplaceTarget target, replace_target(path));
  AttentionTraceWriter writer;
  writer.path_ = path;
  writer.target_ = target.path;
  writer.temporary_ = temporary_name(writer.target_);
  writer.shape_ = shape;
  writer.fd_ = ::open(writer.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, target.mode);
  if (writer.fd_ < 0) return errno_status("create", writer.temporary_);
  std::uint64_t end = 0;
  for (int i = 0; i < shape.arrays(); ++i) {
    const std::array<std::int64_t, 4> own = shape.of(TraceArray{i});
    const std::string header = npy_header(own);
    KVASIR_RETURN_IF_ERROR(writer.write(end, std::as_bytes(std::span(header))));
    writer.offsets_[static_cast<std::size_t>(i)] = end + header.size();
    end += header.size() + floats_of(own) * sizeof(float);
  }
  if (::ftruncate(writer.fd_, static_cast<off_t>(end)) != 0)
    return errno_status("reserve space for", writer.temporary_);
  return writer;
}

AttentionTraceWriter::AttentionTraceWriter(AttentionTraceWriter&& other) noexcept {
  *this = std::move(other);
}

AttentionTraceWriter& AttentionTraceWriter::operator=(AttentionTraceWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(shape_, other.shape_);
  std::swap(offsets_, other.offsets_);
  return *this;
}

AttentionTraceWriter::~AttentionTraceWriter() {
  discard();
}

void AttentionTraceWriter::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_.c_str());
}

Status AttentionTraceWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status AttentionTraceWriter::write_row(std::int64_t layer, std::int64_t head, std::int64_t row,
                                       std::span<const float> weights) {
  KVASIR_CHECK(fd_ >= 0 && weights.size() == static_cast<std::size_t>(row) + 1);
  return write(offsets_.front() + shape_.place(TraceArray::kWeights, layer, head, row) * sizeof(float),
               std::as_bytes(weights));
}

Status AttentionTraceWriter::write_row(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token,
                                       std::span<const float> floats) const {
  KVASIR_CHECK(fd_ >= 0 && std::ssize(floats) == shape_.of(array)[3]);
  return write(offsets_[static_cast<std::size_t>(array)] + shape_.place(array, layer, head, token) * sizeof(float),
               std::as_bytes(floats));
}

Status AttentionTraceWriter::finish() {
  KVASIR_CHECK(fd_ >= 0);
  // A full disk may be reported only on closing.
  Status status;
  if (::close(std::exchange(fd_, -1)) != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    status = errno_status("write", path_);
    ::unlink(temporary_.c_str());
  }
  return status;
}

}  // namespace kvasir

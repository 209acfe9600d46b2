#include "replay/trace.h"

#include <fcntl.h>
#include <unistd.h>

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

Status system_error(const char* what, const std::string& path) {
  const int error = errno;
  StatusCode code = StatusCode::kIo;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = StatusCode::kResourceExhausted;
  if (error == ENOENT) code = StatusCode::kNotFound;
  if (error == EACCES || error == EISDIR || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG)
    code = StatusCode::kInvalidArgument;  // the path is wrong, not the machine
  return make_status(code, "cannot {} '{}': {}", what, path, std::strerror(error));
}

}  // namespace

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
  trace.data_ = bytes.subspan(header.data_offset);
  if (trace.data_.size() < header.data_bytes)
    return data_loss("'{}' is truncated: {} of weights instead of {}", trace.path_,
                     counted(std::ssize(trace.data_), "byte"), header.data_bytes);
  if (trace.data_.size() > header.data_bytes)
    return data_loss("'{}' is damaged: {} too many behind the array", trace.path_,
                     counted(std::ssize(trace.data_) - static_cast<std::int64_t>(header.data_bytes), "byte"));
  return trace;
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
  layers_ = shape[0];
  heads_ = shape[1];
  tokens_ = shape[3];
  return {};
}

void AttentionTrace::read(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const {
  KVASIR_CHECK(layer >= 0 && layer < layers_ && head >= 0 && head < heads_ && row >= 0 && row < tokens_ &&
               weights.size() <= static_cast<std::size_t>(tokens_));
  // The header may misalign the weights, so they are copied as bytes.
  const auto first = static_cast<std::size_t>(((layer * heads_ + head) * tokens_ + row) * tokens_);
  if (!weights.empty()) std::memcpy(weights.data(), data_.data() + first * sizeof(float), weights.size_bytes());
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
  if (sound && std::abs(sum - 1) <= kMostSumError) return {};
  for (std::size_t j = 0; j < weights.size() && !sound; ++j) {
    if (j < seen && !(weights[j] >= 0 && weights[j] <= std::numeric_limits<float>::max()))
      return data_loss("'{}': the weight at [{}, {}, {}, {}] is {}; weights of a softmax are 0 or more", path_, layer,
                       head, row, j, weights[j]);
    if (j >= seen && weights[j] != 0)
      return data_loss("'{}': the weight at [{}, {}, {}, {}] is {}; token {} cannot see a later one", path_, layer,
                       head, row, j, weights[j], row);
  }
  return data_loss("'{}': the weights of row [{}, {}, {}] sum to {:.6g}; those of a softmax sum to 1", path_, layer,
                   head, row, sum);
}

Status AttentionTrace::check(const Progress& progress) const {
  std::vector<float> weights(static_cast<std::size_t>(tokens_));
  for (std::int64_t layer = 0; layer < layers_; ++layer)
    for (std::int64_t head = 0; head < heads_; ++head) {
      if (progress && !progress(layer * heads_ + head, layers_ * heads_))
        return Status(StatusCode::kCancelled, "stopped");
      for (std::int64_t row = 0; row < tokens_; ++row) KVASIR_RETURN_IF_ERROR(check_row(layer, head, row, weights));
    }
  return {};
}

Result<AttentionTraceWriter> AttentionTraceWriter::open(const std::string& path, std::int64_t layers,
                                                        std::int64_t heads, std::int64_t tokens) {
  std::int64_t bytes = sizeof(float);
  for (const std::int64_t size : {layers, heads, tokens, tokens})
    if (size < 1 || __builtin_mul_overflow(bytes, size, &bytes))
      return invalid_argument("a trace of {} layers, {} heads and {} tokens is not possible", layers, heads, tokens);
  if (tokens > kMostTraceTokens)
    return invalid_argument("a trace has at most {} tokens, not {}", kMostTraceTokens, tokens);

  KVASIR_ASSIGN_OR_RETURN(const ReplaceTarget target, replace_target(path));
  AttentionTraceWriter writer;
  writer.path_ = path;
  writer.target_ = target.path;
  writer.temporary_ = temporary_name(writer.target_);
  writer.layers_ = layers;
  writer.heads_ = heads;
  writer.tokens_ = tokens;
  writer.fd_ = ::open(writer.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, target.mode);
  if (writer.fd_ < 0) return system_error("create", writer.temporary_);
  const std::string header = npy_header(std::array{layers, heads, tokens, tokens});
  writer.data_offset_ = header.size();
  if (::ftruncate(writer.fd_, static_cast<off_t>(header.size()) + bytes) != 0)
    return system_error("make room for", writer.temporary_);
  KVASIR_RETURN_IF_ERROR(writer.write(0, std::as_bytes(std::span(header))));
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
  std::swap(data_offset_, other.data_offset_);
  std::swap(layers_, other.layers_);
  std::swap(heads_, other.heads_);
  std::swap(tokens_, other.tokens_);
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

Status AttentionTraceWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status AttentionTraceWriter::write_row(std::int64_t layer, std::int64_t head, std::int64_t row,
                                       std::span<const float> weights) {
  KVASIR_CHECK(fd_ >= 0 && layer >= 0 && layer < layers_ && head >= 0 && head < heads_ && row >= 0 && row < tokens_);
  KVASIR_CHECK(weights.size() == static_cast<std::size_t>(row) + 1);
  const auto first = static_cast<std::uint64_t>(((layer * heads_ + head) * tokens_ + row) * tokens_);
  return write(data_offset_ + first * sizeof(float), std::as_bytes(weights));
}

Status AttentionTraceWriter::finish() {
  KVASIR_CHECK(fd_ >= 0);
  // A full disk may be reported only on closing.
  Status status;
  if (::close(std::exchange(fd_, -1)) != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    status = system_error("write", path_);
    ::unlink(temporary_.c_str());
  }
  return status;
}

}  // namespace kvasir

// Recorded attention: the softmax weights of every layer and query head on a text of T tokens, as a NumPy file of
// float32, C order, shape [layers, heads, T, T]. Row t is a softmax over tokens 0 to t, followed by zeros.
//
// The reader maps the file and copies one row at a time; the writer fills a sparse file row by row. Neither holds the
// array in memory. Thread-safety: the reader's const members from any thread; the writer from one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "kvasir/status.h"
#include "replay/npy.h"

namespace kvasir {

inline constexpr std::int64_t kMostTraceTokens = 2048;

class AttentionTrace {
 public:
  // Reads header, shape and size only; check() verifies the weights. Errors: those of MappedFile::open and
  // parse_npy_header; kUnsupported for another shape or more than kMostTraceTokens; kDataLoss for a truncated file.
  static Result<AttentionTrace> open(const std::string& path);
  // As open, for bytes in memory, which must outlive the trace.
  static Result<AttentionTrace> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  std::int64_t layers() const { return layers_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t tokens() const { return tokens_; }

  // Receives units of work done and in total; returns false to stop.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Checks every weight. Errors: kDataLoss for a weight that is negative or not finite, for a non-zero weight beyond
  // the diagonal, and for a row whose sum is more than 0.01 away from 1; kCancelled.
  Status check(const Progress& progress) const;

  // Copies the weights of query `row` on tokens 0 to weights.size() - 1. REQUIRES: weights.size() <= T.
  void read(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const;

 private:
  AttentionTrace() = default;
  Status set_shape(const NpyHeader& header);
  Status check_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;  // null if the caller owns the bytes
  std::span<const std::byte> data_;         // the array
  std::int64_t layers_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t tokens_ = 0;
};

class AttentionTraceWriter {
 public:
  // Creates a sparse file of the full size beside `path` under a temporary name. Errors: kInvalidArgument for sizes
  // that a trace cannot have and for a path that is not a regular file; system errors.
  static Result<AttentionTraceWriter> open(const std::string& path, std::int64_t layers, std::int64_t heads,
                                           std::int64_t tokens);

  AttentionTraceWriter(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter& operator=(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter(const AttentionTraceWriter&) = delete;
  AttentionTraceWriter& operator=(const AttentionTraceWriter&) = delete;
  ~AttentionTraceWriter();  // without finish(), removes the temporary file

  // Writes one row; rows may come in any order. Rows never written are zero, which the reader's check() refuses.
  // REQUIRES: weights.size() == row + 1. Errors: kResourceExhausted on a full disk; system errors.
  Status write_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<const float> weights);

  // Renames the file to its path, replacing an existing one. Nothing may be written afterwards. Errors: as above; the
  // temporary file is then removed.
  Status finish();

 private:
  AttentionTraceWriter() = default;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  void discard();

  std::string path_;    // as given by the caller
  std::string target_;  // the file to replace, links followed
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t data_offset_ = 0;
  std::int64_t layers_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace kvasir

// Recorded attention: the softmax weights of every layer and query head on a text of T tokens, as a NumPy file of
// float32, C order, shape [layers, heads, T, T]. Row t is a softmax over the tokens 0 ... t, and zero beyond.
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
  // Header, shape and size alone; the weights are looked at by check(). Errors: those of MappedFile::open and of
  // parse_npy_header; kUnsupported for another shape or more than kMostTraceTokens; kDataLoss for a truncated file.
  static Result<AttentionTrace> open(const std::string& path);
  // The same for bytes that outlive the trace.
  static Result<AttentionTrace> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  std::int64_t layers() const { return layers_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t tokens() const { return tokens_; }

  // Of work done and to do; false stops.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Looks at every weight. Errors: kDataLoss for one that is negative or not finite, one beyond the diagonal that is
  // not zero, and a row whose sum is more than 0.01 away from 1; kCancelled.
  Status check(const Progress& progress) const;

  // Copies the weights of query `row` on the tokens 0 ... weights.size()-1, at most T.
  void read(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const;

 private:
  AttentionTrace() = default;
  Status set_shape(const NpyHeader& header);
  Status check_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;  // null where the bytes are the caller's
  std::span<const std::byte> data_;         // the array
  std::int64_t layers_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t tokens_ = 0;
};

class AttentionTraceWriter {
 public:
  // Makes a file of the full size beside `path` under a temporary name; it takes up space only as rows are written.
  // Errors: kInvalidArgument for sizes that a trace cannot have and for a path that is no regular file, and what the
  // system says.
  static Result<AttentionTraceWriter> open(const std::string& path, std::int64_t layers, std::int64_t heads,
                                           std::int64_t tokens);

  AttentionTraceWriter(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter& operator=(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter(const AttentionTraceWriter&) = delete;
  AttentionTraceWriter& operator=(const AttentionTraceWriter&) = delete;
  ~AttentionTraceWriter();  // without finish(), removes the temporary file

  // Rows come in any order. Those never written are zero, which the reader's check() refuses.
  // REQUIRES: weights.size() == row + 1. Errors: kResourceExhausted on a full disk, and what the system says.
  Status write_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<const float> weights);

  // Gives the file its name, replacing one that has it. Nothing is written afterwards. Errors as above; the temporary
  // file is then removed.
  Status finish();

 private:
  AttentionTraceWriter() = default;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  void discard();

  std::string path_;    // as the caller named it
  std::string target_;  // the file to replace, links followed
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t data_offset_ = 0;
  std::int64_t layers_ = 0;
  std::int64_t heads_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace kvasir

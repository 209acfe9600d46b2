// Recorded attention: the softmax weights of every layer and query head on a text of T tokens, as a NumPy file of
// float32, C order, shape [layers, heads, T, T]. Row t is a softmax over tokens 0 to t, followed by zeros.
//
// A recording may also have what policies read besides attention. Five more arrays then follow in the same file, each
// with a header of its own (numpy.load reads the first one; on an open file each call reads the next):
//   keys       [layers, KV heads, T, D]  as a policy is shown them (ChunkKv, retention/capabilities.h)
//   values     [layers, KV heads, T, D]
//   rotations  [layers, KV heads, T, 1]  ChunkKv::rotations
//   queries    [layers, heads, T, D]     before rotation and scaling
//   turns      [layers, 1, 1, 2 + F]     QueryTurn: scale, magnitude, F frequencies; old recordings lack it
//
// The reader maps the file and copies one row at a time; the writer fills a sparse file row by row. Neither holds the
// array in memory. Thread-safety: the reader's const members from any thread; the writer from one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "kv/query_turn.h"
#include "kvasir/status.h"
#include "replay/npy.h"

namespace kvasir {

inline constexpr std::int64_t kMostTraceTokens = 2048;

// The arrays of a file, in order.
enum class TraceArray : int { kWeights, kKeys, kValues, kRotations, kQueries, kTurns };
inline constexpr int kTraceArrays = 6;

// Sizes of a recording, from which those of its arrays follow.
struct TraceShape {
  std::int64_t layers = 0;
  std::int64_t heads = 0;  // query heads
  std::int64_t tokens = 0;
  std::int64_t kv_heads = 0;  // 0: the recording has attention alone
  std::int64_t head_dim = 0;
  std::int64_t frequencies = -1;  // of a layer; -1: there are no turns

  bool has_kv() const { return kv_heads > 0; }
  bool has_turns() const { return has_kv() && frequencies >= 0; }
  int arrays() const { return has_kv() ? kTraceArrays - (has_turns() ? 0 : 1) : 1; }
  // [layers, heads, tokens, floats of a row]
  std::array<std::int64_t, 4> of(TraceArray array) const;
  // Bytes of all arrays without headers. REQUIRES: they fit 63 bits.
  std::uint64_t bytes() const;
  // Returns the index of a row's first float in its array.
  std::uint64_t place(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token) const;
};

class AttentionTrace {
 public:
  // Reads headers, shapes and sizes only; check() verifies the weights. Errors: those of MappedFile::open and
  // parse_npy_header; kUnsupported for other shapes or more than kMostTraceTokens; kDataLoss for a truncated file.
  static Result<AttentionTrace> open(const std::string& path);
  // As open, for bytes in memory, which must outlive the trace.
  static Result<AttentionTrace> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  const TraceShape& shape() const { return shape_; }
  std::int64_t layers() const { return shape_.layers; }
  std::int64_t heads() const { return shape_.heads; }
  std::int64_t tokens() const { return shape_.tokens; }

  // Returns how queries meet keys in each layer; null: the recording does not say.
  QueryTurns turns() const;

  // Receives units of work done and in total; returns false to stop.
  using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

  // Checks every float. Errors: kDataLoss for a weight that is negative or not finite, for a non-zero weight beyond
  // the diagonal, for a row whose sum is more than 0.01 away from 1 (see allow_sinks), and for anything else that is
  // not finite; kCancelled.
  Status check(const Progress& progress) const;
  // Lets rows sum to less than 1, but not to 0: attention sinks, which are no tokens, have the rest.
  void allow_sinks() { sinks_ = true; }

  // Copies the weights of query `row` on tokens 0 to weights.size() - 1. REQUIRES: weights.size() <= T.
  void read(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const {
    read(TraceArray::kWeights, layer, head, row, weights);
  }
  // Copies the first floats of a token's row of an array. REQUIRES: shape().has_kv() for any but kWeights;
  // floats.size() is at most the floats of a row.
  void read(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token, std::span<float> floats) const;

 private:
  AttentionTrace() = default;
  Status set_shape(const NpyHeader& header);
  Status parse_kv(std::span<const std::byte> bytes);
  Status check_array(TraceArray array) const;
  Status check_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<float> weights) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;  // null where the bytes are the caller's
  TraceShape shape_;
  bool sinks_ = false;
  std::array<std::span<const std::byte>, kTraceArrays> data_;
};

class AttentionTraceWriter {
 public:
  // Creates a sparse file of the full size beside `path` under a temporary name. Errors: kInvalidArgument for sizes
  // that a trace cannot have and for a path that is not a regular file; system errors.
  static Result<AttentionTraceWriter> open(const std::string& path, const TraceShape& shape);

  AttentionTraceWriter(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter& operator=(AttentionTraceWriter&& other) noexcept;
  AttentionTraceWriter(const AttentionTraceWriter&) = delete;
  AttentionTraceWriter& operator=(const AttentionTraceWriter&) = delete;
  ~AttentionTraceWriter();  // without finish(), removes the temporary file

  // Writes one row; rows may come in any order. Rows never written are zero, which the reader's check() refuses.
  // REQUIRES: weights.size() == row + 1. Errors: kResourceExhausted on a full disk; system errors.
  Status write_row(std::int64_t layer, std::int64_t head, std::int64_t row, std::span<const float> weights);
  // Writes a token's row of another array. May be called from several threads at once, for different rows. REQUIRES:
  // floats.size() is that of a row. Errors: as above.
  Status write_row(TraceArray array, std::int64_t layer, std::int64_t head, std::int64_t token,
                   std::span<const float> floats) const;
  const TraceShape& shape() const { return shape_; }

  // Renames the file to its path, replacing an existing one. Nothing may be written afterwards. Errors: as above; the
  // temporary file is then removed.
  Status finish();

 private:
  AttentionTraceWriter() = default;
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  void discard();

  std::string path_;    // as given by the caller
  std::string target_;  // the file to replace, links followed
  std::string temporary_;
  int fd_ = -1;
  TraceShape shape_;
  std::array<std::uint64_t, kTraceArrays> offsets_{};  // of the arrays' first floats
};

}  // namespace kvasir

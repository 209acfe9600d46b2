// The forward pass of a llama-family model over rows of one or several sequences.
//
// Contract: a row's logits are bit-identical whatever other rows run with it and on however many threads.
// Thread-safety: a Transformer owns its workspace; one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/weights.h"
#include "text/vocabulary.h"

namespace kvasir {

// Consecutive tokens of one sequence: its newest view->rows tokens, for which the sequence already has room.
struct ForwardItem {
  std::span<const TokenValue> tokens;  // [view->rows]
  const AttentionView* view = nullptr;
  int logits = 0;  // logits are wanted of the last this many rows
};

class Transformer {
 public:
  // All arguments outlive the object.
  Transformer(const ModelConfig* config, const Weights* weights, const KernelTable* kernels, ThreadPool* threads);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;
  ~Transformer();

  // Writes the tokens' keys and values into their pages and computes their logits. REQUIRES: token values within the
  // vocabulary. Returns [rows wanted, vocabulary], items in order; valid until the next call.
  std::span<const float> forward(PagePool& pool, std::span<const ForwardItem> items);

  // Rotates the keys of all tokens with ids >= id in place by `shift` positions (realign=rotate).
  void rotate_keys_behind(PagePool& pool, LaneGroup& group, TokenId id, Position shift);

  // About what passes of `rows` rows over `frames` frames and `entries` entries take beside weights and KV.
  static std::uint64_t workspace_bytes(const ModelConfig& config, int rows, int frames, std::int64_t entries);

 private:
  struct Workspace;
  struct Job {
    const PackedMatrix* weights;
    float* out;
  };
  void embed(std::span<const ForwardItem> items);
  void fill_rotations(std::span<const ForwardItem> items);
  void normalize(const float* x, const float* weight, int rows);
  void quantize(const float* x, int inputs, int rows);
  void multiply(const float* x, int inputs, int rows, std::span<const Job> jobs);
  void store_keys_and_values(PagePool& pool, std::span<const ForwardItem> items, int layer);
  void rotate_queries(std::span<const ForwardItem> items);
  void attend(PagePool& pool, const ForwardItem& item, int first_row, std::size_t first_query, int layer);

  const ModelConfig& config_;
  const Weights& weights_;
  const KernelTable& kernels_;
  ThreadPool& threads_;
  std::unique_ptr<Workspace> work_;
};

}  // namespace kvasir

// What a transformer works in. Internal to src/model; grows to what passes need, and is reused.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "model/transformer.h"

namespace kvasir {

inline constexpr int kRotationCacheEntries = 4096;

inline std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

// A rotation is the cosines, then the sines, of a position's angles.
inline std::size_t floats_per_rotation(const ModelConfig& config) {
  return static_cast<std::size_t>(config.rope.dims / 2) * 2;
}

// A tile of rows of one lane.
struct Transformer::AttentionTask {
  const LayerTable* table = nullptr;
  int head = 0;  // KV head
  int row = 0;   // rows [row, row + rows) of the item
  int rows = 0;
  std::size_t state = 0;           // of its total; those of partials follow
  float* weights = nullptr;        // [rows * group][entries * slots], if observed
  float* weight_maxima = nullptr;  // [rows * group][entries]
};

struct Transformer::Workspace {
  AlignedBuffer<float> residual;         // [rows][width]
  AlignedBuffer<float> normalized;       // [rows][width]
  AlignedBuffer<float> query;            // [rows][heads * head_dim]
  AlignedBuffer<float> key;              // [rows][kv_heads * head_dim]
  AlignedBuffer<float> value;            // [rows][kv_heads * head_dim]
  AlignedBuffer<float> rotated;          // per table [frames][rows][its query heads * head_dim]
  AlignedBuffer<float> attention;        // [rows][heads * head_dim]
  AlignedBuffer<float> gate;             // [rows][ffn]
  AlignedBuffer<float> up;               // [rows][ffn]
  AlignedBuffer<float> projected;        // [rows][width]
  AlignedBuffer<float> logits;           // [rows wanted][vocabulary]
  AlignedBuffer<float> key_rotation;     // per table [rows][rotation]
  AlignedBuffer<float> query_rotation;   // per table [frames][rows][rotation]
  AlignedBuffer<std::int8_t> q8_quants;  // rows as Q8Rows
  AlignedBuffer<float> q8_scale;
  AlignedBuffer<float> q8_scaled_sum;
  AlignedBuffer<std::int32_t> q8_sum;
  AlignedBuffer<std::int32_t> q8_half_sum;
  AlignedBuffer<float> state_weighted;  // attention states: totals, then partials
  AlignedBuffer<float> state_scalars;   // maximum and sum of each
  AlignedBuffer<float> weights;         // observed
  AlignedBuffer<float> weight_maxima;

  std::vector<LayerTable> tables;  // of the layer at hand
  std::vector<AttentionTask> tasks;
  std::vector<std::pair<int, int>> partials;  // task, partial
  std::vector<std::span<const float>> observed;

  // Rotations by position, direct-mapped: neighbouring positions come again and again.
  std::vector<Position> cached_position;
  AlignedBuffer<float> cached_rotation;  // [kRotationCacheEntries][rotation]
};

}  // namespace kvasir

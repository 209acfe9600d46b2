// Small models of the supported families made of random or given numbers, as complete GGUF files in memory.
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir::test {

enum class RopeScaling {
  kNone,
  kLinear,  // metadata: positions divided by rope_factor
  kLlama3,  // tensor rope_freqs.weight: Llama 3.1's rule, with `context` as the original context
  kYarn,    // metadata: by rope_factor, with a quarter of `context` as the original context
};

struct RandomModelSpec {
  // llama, qwen2, qwen3, qwen3moe, gpt-oss, gptneox, gemma3, smollm3, or decay (decay_mixer.h)
  std::string architecture = "llama";
  int layers = 2;
  int d = 64;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int rotary = 0;  // rotated dimensions of a head; 0: all of them
  int ffn = 160;
  int vocab = 320;  // below 260 the byte tokens are cut off: fine for tests that never tokenize
  // Of the matrices: f32, f16, bf16, q8_0, or another type's name in lower case (its blocks are then random bits of the
  // spread that was asked for, and no given values). Rows are whole blocks. Norms and biases are always f32.
  std::string dtype = "f32";
  bool biases = false;              // of all projections of a llama model, which has none otherwise
  bool parallel_residual = true;    // of gptneox
  int sliding_window = 0;           // 0: none
  int window_pattern = 0;           // of gemma3: every so many layers one sees everything; 0: the file does not say
  int experts = 8;                  // of qwen3moe and gpt-oss, each of ffn outputs
  int experts_used = 3;             // of a row
  std::vector<int> state_channels;  // of decay, [layers]: of a layer with a state; 0: it has attention
  bool tied = true;
  float rope_base = 10000;
  int context = 256;
  RopeScaling rope_scaling = RopeScaling::kNone;
  float rope_factor = 4;
  float rms_epsilon = 1e-5F;
  std::uint64_t seed = 1;
  float weight_std = 0;   // of the matrices; 0: 1/sqrt(row length)
  float output_gain = 1;  // what the output matrix is larger by: the deviation of the logits
  std::string name = "random";
  std::optional<Vocabulary> vocabulary;  // of `vocab` pieces; none: invented_vocabulary(vocab)

  bool has_experts() const { return architecture == "qwen3moe" || architecture == "gpt-oss"; }
  bool has_head_norms() const {
    return architecture == "qwen3" || architecture == "qwen3moe" || architecture == "gemma3";
  }
};

// Control and byte tokens, then a space, letters, and words of letters and spaces. BOS is 1 and is put in front.
Vocabulary invented_vocabulary(int size);

// Gives a tensor's values before rounding: rows * columns of them, by rows. Norms and biases have one row.
using WeightSource = std::function<std::vector<float>(const std::string& name, int rows, int columns)>;

std::vector<std::byte> make_model(const RandomModelSpec& spec, const WeightSource& weights);

// Normally distributed matrices, norms near 1. The values before rounding do not depend on dtype.
std::vector<std::byte> make_random_model(const RandomModelSpec& spec);

// A model's file without its weights, which are a hole: any size takes no room on disk. REQUIRES: the file can be
// written (checked).
void write_hollow_model(const std::string& path, const RandomModelSpec& spec);

// REQUIRES: the file can be written (checked).
void write_bytes(const std::string& path, const std::vector<std::byte>& bytes);

}  // namespace kvasir::test

// Small random models of every family, and of what files of a family may add to it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "support/random_model.h"

namespace kvasir::test {

struct FamilyCase {
  std::string name;
  RandomModelSpec spec;
};

inline void PrintTo(const FamilyCase& family, std::ostream* out) {
  *out << family.name;
}

inline std::vector<FamilyCase> family_cases(const RandomModelSpec& base = {}) {
  const auto with = [&](const std::string& architecture, auto change) {
    RandomModelSpec spec = base;
    spec.architecture = architecture;
    if (architecture == "gptneox") {
      spec.kv_heads = spec.heads;
      spec.rotary = spec.head_dim / 4;
    }
    change(spec);
    return spec;
  };
  const auto plain = [](RandomModelSpec&) {};
  return {
      {"llama", with("llama", plain)},
      {"llama_biases", with("llama", [](auto& s) { s.biases = true; })},
      {"llama_yarn", with("llama", [](auto& s) { s.rope_scaling = RopeScaling::kYarn; })},
      {"llama_sliding_window", with("llama", [](auto& s) { s.sliding_window = 23; })},
      {"qwen2", with("qwen2", plain)},
      {"qwen2_yarn", with("qwen2",
                          [](auto& s) {
                            s.rope_scaling = RopeScaling::kYarn;
                            s.tied = false;
                          })},
      {"qwen3", with("qwen3",
                     [](auto& s) {
                       s.head_dim *= 2;
                       s.rope_base = 1000000;
                     })},
      {"gemma3", with("gemma3",
                      [](auto& s) {
                        s.layers = 4;
                        s.head_dim *= 2;
                        s.sliding_window = 23;
                        s.window_pattern = 2;
                        s.rope_base = 1000000;
                      })},
      {"qwen3moe", with("qwen3moe", [](auto& s) { s.ffn /= 2; })},
      {"gpt_oss", with("gpt-oss",
                       [](auto& s) {
                         s.layers = 4;
                         s.sliding_window = 23;
                         s.window_pattern = 2;
                         s.rope_scaling = RopeScaling::kYarn;
                         s.ffn /= 2;
                       })},
      {"smollm3", with("smollm3", [](auto& s) { s.layers = 5; })},
      {"gptneox", with("gptneox", plain)},
      {"gptneox_sequential", with("gptneox",
                                  [](auto& s) {
                                    s.parallel_residual = false;
                                    s.rotary = s.head_dim;
                                  })},
  };
}

}  // namespace kvasir::test

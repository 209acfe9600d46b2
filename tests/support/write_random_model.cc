// Writes a model of random weights to a file, of any family and shape: for measuring speed, memory and agreement with
// other implementations.
#include <CLI/CLI.hpp>

#include "support/random_model.h"

int main(int argc, char** argv) {
  using namespace kvasir;
  CLI::App program{"Writes a model of random weights; without options, of the shape of Llama 3.2 1B."};
  test::RandomModelSpec spec;
  spec.layers = 16;
  spec.d = 2048;
  spec.heads = 32;
  spec.kv_heads = 8;
  spec.head_dim = 64;
  spec.ffn = 8192;
  spec.vocab = 128256;
  spec.dtype = "q8_0";
  spec.context = 131072;
  spec.rope_base = 500000;
  std::string path;
  const auto size = [&](const char* name, int& value) {
    program.add_option(name, value)->capture_default_str()->check(CLI::Range(1, 1 << 20));
  };
  program.add_option("file", path, "GGUF file to write")->required();
  size("--layers", spec.layers);
  size("--d", spec.d);
  size("--heads", spec.heads);
  size("--kv-heads", spec.kv_heads);
  size("--head-dim", spec.head_dim);
  size("--ffn", spec.ffn);
  size("--vocab", spec.vocab);
  size("--context", spec.context);
  program.add_option("--architecture", spec.architecture)
      ->capture_default_str()
      ->check(CLI::IsMember({"llama", "qwen2", "qwen3", "gptneox", "gemma3", "smollm3"}));
  program.add_option("--rotary", spec.rotary, "Rotated dimensions of a head; 0: all")->capture_default_str();
  program.add_option("--rope-base", spec.rope_base)->capture_default_str();
  program.add_option("--sliding-window", spec.sliding_window)->capture_default_str();
  program.add_option("--window-pattern", spec.window_pattern, "Every so many layers one sees everything (gemma3)")
      ->capture_default_str();
  program
      .add_option("--output-gain", spec.output_gain, "Deviation of the logits; an output matrix of its own if not 1")
      ->capture_default_str();
  std::string scaling = "none";
  program.add_option("--rope-scaling", scaling)
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "linear", "llama3", "yarn"}));
  program.add_option("--dtype", spec.dtype, "Type of the matrices; quantised ones but q8_0 are random bits")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32",    "f16",   "bf16",  "q8_0",  "q4_0",   "q4_1",   "q5_0",    "q5_1",  "q2_k",
                             "q3_k",   "q4_k",  "q5_k",  "q6_k",  "iq4_nl", "iq4_xs", "iq3_xxs", "iq3_s", "iq2_xxs",
                             "iq2_xs", "iq2_s", "iq1_s", "iq1_m", "tq1_0",  "tq2_0",  "mxfp4"}));
  CLI11_PARSE(program, argc, argv);
  spec.tied = spec.output_gain == 1;
  spec.rope_scaling = scaling == "linear"   ? test::RopeScaling::kLinear
                      : scaling == "llama3" ? test::RopeScaling::kLlama3
                      : scaling == "yarn"   ? test::RopeScaling::kYarn
                                            : test::RopeScaling::kNone;
  test::write_bytes(path, test::make_random_model(spec));
}

// Writes a llama model of random weights to a file, of any shape: for measuring speed and memory.
#include <CLI/CLI.hpp>

#include "support/random_model.h"

int main(int argc, char** argv) {
  using namespace kvasir;
  CLI::App program{"Writes a llama model of random weights; without options, of the shape of Llama 3.2 1B."};
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
  program.add_option("--dtype", spec.dtype, "Type of the matrices")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
  CLI11_PARSE(program, argc, argv);
  test::write_bytes(path, test::make_random_model(spec));
}

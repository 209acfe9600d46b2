// Splits a model into parts: for checks of the built program, and by hand.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "support/split_model.h"

int main(int argc, char** argv) {
  using namespace kvasir;
  CLI::App program{"Splits a GGUF file into STEM-00001-of-0000N.gguf and so on, and prints their paths."};
  std::string path, stem;
  int count = 3;
  bool empty_first = false;
  program.add_option("file", path, "GGUF file to split")->required();
  program.add_option("stem", stem, "What the names of the parts begin with, folder included")->required();
  program.add_option("count", count, "Parts")->capture_default_str()->check(CLI::Range(2, 65535));
  program.add_flag("--empty-first", empty_first, "No tensors in the first part");
  CLI11_PARSE(program, argc, argv);
  const auto whole = gguf::File::open(path);
  if (!whole.ok()) {
    std::fprintf(stderr, "%s\n", whole.status().message().c_str());
    return 1;
  }
  const auto paths = test::write_parts(stem, test::split_model(*whole, count, empty_first));
  if (!paths.ok()) {
    std::fprintf(stderr, "%s\n", paths.status().message().c_str());
    return 1;
  }
  for (const std::string& part : *paths) std::puts(part.c_str());
  return 0;
}

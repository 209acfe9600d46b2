// Writes an induction model (induction_model.h) to a file, so that the program can be run on it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "gguf/reader.h"
#include "model/vocabulary_from_gguf.h"
#include "support/induction_model.h"

int main(int argc, char** argv) {
  using namespace kvasir;
  CLI::App program{"Writes a model whose computed weights recall exactly what its cache holds."};
  test::InductionSpec spec;
  std::string path;
  std::string vocabulary_of;
  program.add_option("file", path, "GGUF file to write")->required();
  program.add_option("--match", spec.match, "Tokens that must match for a recall")
      ->capture_default_str()
      ->check(CLI::Range(1, 8));
  program.add_option("--vocab", spec.vocab, "Size of an invented vocabulary")
      ->capture_default_str()
      ->check(CLI::Range(260, 1 << 14));
  program.add_option("--vocabulary-of", vocabulary_of, "GGUF file whose vocabulary to take instead");
  program.add_option("--context", spec.context, "Trained context to claim")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  program.add_option("--dtype", spec.dtype, "Type of the matrices")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
  CLI11_PARSE(program, argc, argv);
  if (!vocabulary_of.empty()) {
    const auto fail = [](const Status& status) {
      std::fprintf(stderr, "kvasir_write_induction_model: %s\n", status.message().c_str());
      return 1;
    };
    const auto file = gguf::File::open(vocabulary_of, {.header_only = true});
    if (!file.ok()) return fail(file.status());
    auto vocabulary = vocabulary_from_gguf(*file);
    if (!vocabulary.ok()) return fail(vocabulary.status());
    spec.vocabulary = std::move(*vocabulary);
  }
  test::write_bytes(path, test::make_induction_model(spec));
}

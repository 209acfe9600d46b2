// Optional extra test data: books, published tokenizer vectors, models. Lives in the folder that the environment
// variable KVASIR_SHARED names, or in ../shared beside the project; tests that need it skip, saying so, without it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace kvasir::test {

inline std::string source_dir() {
  const char* dir = std::getenv("KVASIR_SOURCE_DIR");
  return dir != nullptr ? dir : ".";
}

inline std::optional<std::string> shared_file(const std::string& relative) {
  const char* dir = std::getenv("KVASIR_SHARED");
  const std::filesystem::path path =
      (dir != nullptr ? std::filesystem::path(dir) : std::filesystem::path(source_dir()) / ".." / "shared") / relative;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

// A model of 3 million parameters that was trained for an hour: small enough for tests under sanitizers.
inline std::string small_model() {
  return source_dir() + "/tests/data/kvasir-mini-3m-q8_0.gguf";
}

// The model that users get with the project. It recalls facts from its context, which small_model() does not.
inline std::string bundled_model() {
  return source_dir() + "/models/kvasir-mini-16m-q8_0.gguf";
}

}  // namespace kvasir::test

#define KVASIR_SHARED_OR_SKIP(variable, relative)                                                        \
  const auto variable##_found = ::kvasir::test::shared_file(relative);                                   \
  if (!variable##_found) GTEST_SKIP() << "needs " << (relative) << " (set KVASIR_SHARED to its folder)"; \
  const std::string variable = *variable##_found

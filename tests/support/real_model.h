// SmolLM2-135M-Instruct, the model that kvasir uses by default. It is downloaded, not part of the repository: tests
// that need it skip, saying so, where it is missing. Where KVASIR_REQUIRE_REAL_MODEL is 1 they fail instead.
// real_model.py in this folder follows the same rule.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvasir::test {

// Returns where the model is looked for: the file that KVASIR_REAL_MODEL names, else its name in $KVASIR_CACHE/models,
// else in $XDG_CACHE_HOME/kvasir/models, else in ~/.cache/kvasir/models.
inline std::string real_model() {
  const auto value = [](const char* name) -> std::string {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
  };
  if (const std::string file = value("KVASIR_REAL_MODEL"); !file.empty()) return file;
  std::filesystem::path cache = value("KVASIR_CACHE");
  if (cache.empty()) {
    const std::string base = value("XDG_CACHE_HOME");
    cache = (base.empty() ? std::filesystem::path(value("HOME")) / ".cache" : std::filesystem::path(base)) / "kvasir";
  }
  return cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

// Gemma 3 270M, which only tests use: the file that KVASIR_GEMMA_MODEL names, else its name in test-models, beside the
// folder of the other.
inline std::string gemma_model() {
  if (const char* file = std::getenv("KVASIR_GEMMA_MODEL"); file != nullptr && *file != 0) return file;
  return std::filesystem::path(real_model()).parent_path().parent_path() / "test-models" / "gemma-3-270m-q4_k_m.gguf";
}

inline bool real_model_required() {
  const char* text = std::getenv("KVASIR_REQUIRE_REAL_MODEL");
  return text != nullptr && std::string_view(text) == "1";
}

}  // namespace kvasir::test

// Ends the test, skipped or failed, unless the model is there; declares `variable` with its path.
#define KVASIR_REAL_MODEL_OR_SKIP(variable)                                                                       \
  const std::string variable = ::kvasir::test::real_model();                                                      \
  if (!std::filesystem::exists(variable)) {                                                                       \
    ASSERT_FALSE(::kvasir::test::real_model_required())                                                           \
        << "KVASIR_REQUIRE_REAL_MODEL is 1, but there is no " << variable;                                        \
    GTEST_SKIP() << "needs " << variable << " (scripts/run downloads it; KVASIR_REAL_MODEL names another place)"; \
  }                                                                                                               \
  static_assert(true, "a semicolon follows")

// Shared by the tests of wrong command lines: malformed files, and messages that many of them expect.
// Thread-safety: none; one test at a time.
#pragma once

#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/cpu/kernels/kernels.h"
#include "cli/program.h"
#include "retention/registry.h"

namespace kvasir::test {

class Errors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("kvasir-errors-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(file("empty"));
    std::ofstream(file("text")) << some_text(50);
    std::ofstream(file("binary")) << "\xff\xfa\x02\x01";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

// Returns the hint at the end of a parse error.
inline std::string see(const std::string& command) {
  return " (see 'kvasir" + (command.empty() ? "" : " " + command) + " --help')";
}

inline std::string policy_names() {
  std::vector<std::string_view> names;
  for (const PolicyInfo* info : all_policies()) names.push_back(info->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

inline std::string unknown_policy(const std::string& name) {
  return fmt::format("unknown retention policy '{}'; the policies are: {}", name, policy_names());
}

inline std::string no_model_in(const std::string& folder) {
  return "the folder '" + folder + "' holds no GGUF file of a model";
}

// Returns the list of kernels on this machine, as messages give it.
inline std::string kernels() {
  return fmt::format("there are: auto, {}", fmt::join(kernel_names(), ", "));
}

inline const std::string kEvaluationOnly =
    "policy 'recompute' is a baseline for the evaluation of perplexity only; choose another";
inline const std::string kStreamingOptions =
    "the options of 'streaming' are: sinks, window, cap, every, slack, overlap, refresh, max_drop, realign, protect";
inline const std::string kChunk = "--chunk -1 is outside 1 to 4096 tokens (0: the policy's own)";
inline const std::string kNoPage =
    " is less than one page for each KV head of each layer (<number> bytes); give it more [--kv-memory]";
inline const std::string kSize = "; give bytes, or a unit with them, such as 512MiB or 2GB";
inline const std::string kIconv = "; convert it with iconv, for example `iconv -f WINDOWS-1252 -t UTF-8`";
inline const std::string kNoGguf =
    ": this is not a GGUF file: it begins with 'Once' instead of 'GGUF'; convert the model to GGUF first";

}  // namespace kvasir::test

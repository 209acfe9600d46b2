#include "golden/golden_file.h"

#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "backend/cpu/kernels/kernels.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

constexpr std::string_view kPending = "pending";

const char* unlike_this_machine() {
  if (std::string_view(gnu_get_libc_version()) != "2.36") return "the C library is not glibc 2.36";
  if (!__builtin_cpu_supports("fma")) return "the processor has no fused multiply-add";
  return nullptr;
}

// What stands behind each name, "arithmetic/case".
std::map<std::string, std::string> read_lines() {
  const std::string path = source_dir() + "/tests/golden/bits.txt";
  std::map<std::string, std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t end = line.find(' ');
    const std::string value = end == std::string::npos ? "" : line.substr(end + 1);
    if (value != kPending && !value.starts_with("logits "))
      ADD_FAILURE() << path << ": not a line of these tests: " << line;
    else if (!lines.emplace(line.substr(0, end), value).second)
      ADD_FAILURE() << path << ": twice: " << line.substr(0, end);
  }
  return lines;
}

}  // namespace

void compare_with_file(std::string_view isa, const std::vector<std::string>& cases,
                       const std::function<GoldenResult(std::size_t number)>& run) {
  if (const char* reason = unlike_this_machine()) GTEST_SKIP() << "bits.txt does not hold here: " << reason;
  const KernelTable* table = find_kernels(isa);
  const std::string arithmetic(table != nullptr ? table->arithmetic : isa);
  const std::map<std::string, std::string> expected = read_lines();
  std::ofstream out;
  if (const char* path = std::getenv("KVASIR_WRITE_GOLDEN")) out.open(path, std::ios::app);
  // Tables of one arithmetic have their lines in common. The table that it is named after writes them, or another one
  // where that does not run.
  if (out.is_open() && arithmetic != isa && find_kernels(arithmetic) != nullptr) return;
  std::string pending;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string name = arithmetic + "/" + cases[i];
    const auto found = expected.find(name);
    const std::string value = found != expected.end() ? found->second : std::string(kPending);
    if (table == nullptr) {
      if (out.is_open()) out << name << ' ' << value << '\n';
      if (value == kPending) pending += "\n  " + name;
      continue;
    }
    const GoldenResult result = run(i);
    const std::string line =
        fmt::format("logits {:016x} kept {:016x} of {}", result.logits, result.kept, result.retained);
    if (out.is_open()) {
      out << name << ' ' << line << '\n';
    } else if (found == expected.end()) {
      ADD_FAILURE() << "bits.txt lacks a line of " << name;
    } else if (value == kPending) {
      pending += "\n  " + name;
    } else {
      EXPECT_EQ(line, value) << name;
    }
  }
  if (table == nullptr)
    GTEST_SKIP() << "no kernels " << isa << " on this machine"
                 << (pending.empty() ? "" : "; bits.txt still lacks:" + pending);
  if (!pending.empty())
    GTEST_SKIP()
        << "all other bits were compared; KVASIR_WRITE_GOLDEN on this machine writes those that bits.txt lacks:"
        << pending;
}

void expect_lines_of(const std::function<std::vector<std::string>(std::string_view arithmetic)>& cases,
                     bool of_real_model) {
  std::set<std::string> wanted;
  for (const std::string_view arithmetic : kGoldenArithmetics)
    for (const std::string& name : cases(arithmetic)) wanted.insert(fmt::format("{}/{}", arithmetic, name));
  const std::map<std::string, std::string> lines = read_lines();
  for (const std::string& name : wanted) EXPECT_TRUE(lines.contains(name)) << "bits.txt lacks " << name;
  for (const auto& [name, value] : lines) {
    const bool own = name.substr(name.find('/') + 1).starts_with(kRealModelCases) == of_real_model;
    EXPECT_TRUE(!own || wanted.contains(name)) << "no case is called " << name;
  }
}

}  // namespace kvasir::test

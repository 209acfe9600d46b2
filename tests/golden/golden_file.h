// The lines of tests/golden/bits.txt: for each case and each arithmetic (kernel tables may share one), what it gave
// when the file was made. A change of it is a change of the arithmetic and must be meant: KVASIR_WRITE_GOLDEN=FILE
// makes the tests append their lines to a file instead of comparing, to be put in the place of the old ones.
//
// "pending" stands for what the machine that wrote the file could not run, for want of instructions. Where it does run,
// the tests compare all other lines and then skip, naming those that are to be written.
//
// The file holds on x86-64 with fused multiply-add and the mathematical library of glibc 2.36; elsewhere exp, sin and
// cos may differ in their last bit, and the tests are skipped.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "golden/golden_run.h"

namespace kvasir::test {

// The arithmetics of the file, each with the name of the kernel table that writes its lines.
inline constexpr std::string_view kGoldenArithmetics[] = {"generic", "avx512", "amx"};

// Cases of the downloaded model begin with this, and have a test program of their own.
inline constexpr std::string_view kRealModelCases = "smollm2/";

// Runs all cases on a kernel table, or skips the test where the file does not hold or the table does not run. `cases`:
// names without spaces.
void compare_with_file(std::string_view isa, const std::vector<std::string>& cases,
                       const std::function<GoldenResult(std::size_t number)>& run);

// Expects of the file's lines, those of the downloaded model or the others, that they are of these cases, and all.
void expect_lines_of(const std::function<std::vector<std::string>(std::string_view arithmetic)>& cases,
                     bool of_real_model);

}  // namespace kvasir::test

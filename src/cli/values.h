// Checks of the values that options are given.
// Thread-safety: pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvasir::cli {

// Makes every numeric option reject empty values and values out of its type's range, which CLI11 would wrap, clamp or
// read as 0; and every option of type FILE, FOLDER or NAME reject empty names. The last value of a single-valued option
// counts. Call it after all commands are added.
void check_values(CLI::App& program);

// Returns the problem with the value of a numeric option, and the values it accepts: "'five' is not a whole number (-1
// or more)". `option` may be null.
std::string number_complaint(const CLI::App& command, const CLI::Option* option, const std::string& text);

}  // namespace kvasir::cli

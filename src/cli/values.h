// Checks of the values that options are given.
// Thread-safety: pure functions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvasir::cli {

// Makes every numeric option reject values out of its type's range, and empty ones, which CLI11 itself would wrap or
// clamp, or read as 0; and every option of type FILE, FOLDER or NAME empty names. Makes the last of an option's values
// count where it takes one. Call it after all commands are added.
void check_values(CLI::App& program);

// Returns what is wrong with the value of a numeric option, and the values it accepts: "'five' is not a whole number
// (-1 or more)". `option` may be null.
std::string number_complaint(const CLI::App& command, const CLI::Option* option, const std::string& text);

}  // namespace kvasir::cli

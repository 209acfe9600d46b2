// Texts of examples/ that are compiled in by a generated source file.
// Thread-safety: constants.
#pragma once

#include <string_view>

namespace kvasir::cli {

std::string_view the_bell_of_saint_anne();  // about 7,100 tokens of SmolLM2, 7,900 of the bundled model
std::string_view the_lamplighter();         // about 1,500 tokens

}  // namespace kvasir::cli

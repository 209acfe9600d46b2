// Sizes as people write them, on the command line and in files.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Reads a size: a decimal number and a unit, such as 1048576, 512MiB, 1.5 GiB or 2GB. Units: b, and k, m, g, t, p, e
// alone or with b (powers of 1,000), or with i or ib (powers of 1,024), in any case. Returns the exact product, rounded
// down to whole bytes; nullopt for anything else, for a fraction of plain bytes, and for more than 2^63 bytes.
std::optional<std::uint64_t> parse_byte_size(std::string_view text);

// Returns whether the text is a size that is only too large for parse_byte_size.
bool is_too_large_size(std::string_view text);

// Writes a size exactly, in the largest binary unit that leaves a whole number: "512MiB", "2GiB", "1000", "0".
std::string byte_size_text(std::uint64_t bytes);

}  // namespace kvasir

// Reads and writes headers of NumPy's .npy files, format versions 1 to 3: magic "\x93NUMPY", version, length, and a
// Python dictionary with "descr", "fortran_order" and "shape" (numpy.lib.format, NEP 1). Little-endian float32 only.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

struct NpyHeader {
  std::vector<std::int64_t> shape;  // none negative; their product times 4 fits 63 bits
  std::size_t data_offset = 0;      // bytes before the first element; may be odd
  std::uint64_t data_bytes = 0;     // data size by the shape; the file may hold less or more
};

// Reads the header of a C-ordered float32 array from the beginning of a file. `name` is for messages. Errors: kDataLoss
// for anything but an undamaged .npy file; kUnsupported for other kinds of arrays.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> file, const std::string& name);

// Formats a shape as Python does: "(1, 2, 48, 48)".
std::string npy_shape_text(std::span<const std::int64_t> shape);

// Returns the header of such an array in format version 1.0, padded to a multiple of 64 bytes as NumPy does.
std::string npy_header(std::span<const std::int64_t> shape);

}  // namespace kvasir

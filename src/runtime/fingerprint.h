// Identifies a model's file without reading all of it.
// Thread-safety: pure function.
#pragma once

#include "base/hash.h"
#include "gguf/reader.h"

namespace kvasir {

// Returns the XXH3-128 of the header and of both ends of each tensor, 64 KiB each.
Hash128 fingerprint_of(const gguf::File& file);

}  // namespace kvasir

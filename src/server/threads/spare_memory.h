// Memory that is set free when the system has none left. What then fails still needs some on its way out: the
// destructor of a JSON value allocates, and an exception that leaves a destructor ends the process.
// Thread-safety: any thread may call at any time.
#pragma once

#include <cstddef>

namespace kvasir::server {

// The bytes that are kept: those that destructors of the largest body take. They are not touched, so they use addresses
// and no memory.
inline constexpr std::size_t kSpareMemory = std::size_t{64} << 20;

// Keeps the memory unless it is kept already or there is too little. The next `new` in the process that finds none sets
// it free and throws std::bad_alloc.
void keep_spare_memory();

}  // namespace kvasir::server

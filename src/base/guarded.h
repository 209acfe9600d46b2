// Turns exceptions into a Status: out of memory, lengths, and resources that the system refuses.
// Thread-safety: none of its own.
#pragma once

#include <new>
#include <stdexcept>
#include <system_error>

#include "base/status.h"

namespace kvasir {

// Returns what `call` returns, a Status or a Result.
template <class Call>
auto guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return exhausted("the system has no memory left for this; close other programs, or use a smaller model or policy");
  } catch (const std::length_error&) {
    return exhausted("this needs more memory than a program can have; use a shorter text or a smaller policy");
  } catch (const std::system_error& error) {
    return exhausted("the system refused a resource ({}), threads perhaps; use fewer of them (threads=1)",
                     error.what());
  }
}

}  // namespace kvasir

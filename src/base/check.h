// KVASIR_CHECK: an assertion that stays in release builds. For bugs only; never for input.
#pragma once

namespace kvasir {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

#define KVASIR_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::kvasir::check_failed(#condition, __FILE__, __LINE__))

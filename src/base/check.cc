#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvasir {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "kvasir: internal error (a bug, please report it): %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace kvasir

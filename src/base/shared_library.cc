#include "base/shared_library.h"

#include <dlfcn.h>

namespace kvasir {

SharedLibrary::SharedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) error_ = dlerror();
}

void* SharedLibrary::find(const char* symbol) {
  void* const address = handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
  if (address == nullptr && error_.empty()) error_ = std::string("it has no ") + symbol;
  return address;
}

}  // namespace kvasir

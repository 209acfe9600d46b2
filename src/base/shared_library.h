// A library that is loaded when first needed. Each of them loads a dozen others, which would cost all other commands
// time and address space.
// Thread-safety: any thread, on different objects.
#pragma once

#include <string>

namespace kvasir {

class SharedLibrary {
 public:
  // Loads the library, which stays loaded. `name` is its file name, such as "libcurl.so.4".
  explicit SharedLibrary(const char* name);

  // Sets `function` to the address of a symbol; null where there is none.
  template <class Function>
  SharedLibrary& bind(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(find(symbol));
    return *this;
  }

  // Returns the first failure, such as a missing file or symbol; empty if there was none.
  const std::string& error() const { return error_; }

 private:
  void* find(const char* symbol);

  void* handle_;
  std::string error_;
};

}  // namespace kvasir

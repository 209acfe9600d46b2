// Errors as clients read them.
// Thread-safety: plain values and pure functions.
#pragma once

#include <string>

namespace kvasir::server {

struct ErrorText {
  int http = 0;
  std::string message;
  std::string code;   // such as "model_not_found"; "" without one
  std::string field;  // the field of the body at fault; "" without one
};

// Returns the body of an error in the form of one API.
using ErrorForm = std::string (*)(const ErrorText& error);

}  // namespace kvasir::server

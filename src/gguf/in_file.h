// Names the file in errors about what it holds.
#pragma once

#include <utility>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir::gguf {

// Returns the status with the file's name before its message, and a remedy behind a kDataLoss that has none (no ';').
// Returns it as it is if it is ok, its message names the file, or the file has no name. The name of a split file is its
// first part's.
Status in_file(const Status& status, const File& file);

template <class T>
Result<T> in_file(Result<T> result, const File& file) {
  if (result.ok()) return result;
  return in_file(result.status(), file);
}

}  // namespace kvasir::gguf

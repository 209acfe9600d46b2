// The files of a disk store, one per blob; an interface, so that tests can make each call fail.
// Thread-safety: calls about different files may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

class BlobFiles {
 public:
  virtual ~BlobFiles() = default;

  // Writes a file and its folder entry durably. After an error there is no such file, or a truncated one. Errors:
  // kResourceExhausted (a full disk), kIo.
  virtual Status write(const std::string& name, std::span<const std::byte> bytes) = 0;
  // Reads a file of exactly into.size() bytes. Errors: kNotFound, kDataLoss (another size), kIo.
  virtual Status read(const std::string& name, std::span<std::byte> into) = 0;
  virtual void remove(const std::string& name) = 0;
  // Returns names and sizes of all files. Errors: kIo.
  virtual Result<std::vector<std::pair<std::string, std::uint64_t>>> list() = 0;
};

// Opens a folder, which is made if missing. Errors: kInvalidArgument.
Result<std::unique_ptr<BlobFiles>> open_blob_files(const std::string& folder);

}  // namespace kvasir

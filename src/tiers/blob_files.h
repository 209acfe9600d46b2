// The files of a disk store, one for each blob. Behind an interface, so that tests can make each call fail.
// Thread-safety: calls about different files may run beside each other.
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

  // Writes a file whole, and its place in the folder, so that both outlive a failure of power. After an error there is
  // no such file, or one that is cut off. Errors: kResourceExhausted (a full disk), kIo.
  virtual Status write(const std::string& name, std::span<const std::byte> bytes) = 0;
  // Reads a file of exactly so many bytes. Errors: kNotFound, kDataLoss (another size), kIo.
  virtual Status read(const std::string& name, std::span<std::byte> into) = 0;
  virtual void remove(const std::string& name) = 0;
  // Names and sizes of all files. Errors: kIo.
  virtual Result<std::vector<std::pair<std::string, std::uint64_t>>> list() = 0;
};

// Files of a folder, which is made if it is missing. Errors: kInvalidArgument.
Result<std::unique_ptr<BlobFiles>> open_blob_files(const std::string& folder);

}  // namespace kvasir

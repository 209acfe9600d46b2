// Blobs in a folder: a file for each, and a catalogue (SQLite) that says which files are whole.
//
//   FOLDER/lock            held by the process that uses the folder
//   FOLDER/catalogue.db    a row for each blob: keys, bytes, when it was used
//   FOLDER/parts/*.part    the blobs; a file without a row is removed when the folder is opened
//
// A file is written and made durable, then its row: a process that is killed at any moment leaves whole blobs, and
// files that nobody refers to. Bytes are bounded: what was used longest ago goes first.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tiers/blob_files.h"
#include "tiers/blob_store.h"

namespace kvasir {

struct DiskStoreOptions {
  std::string folder;
  std::uint64_t capacity = 0;  // bytes of all blobs, at most
  // Told a line of what went wrong, by any thread. Optional.
  std::function<void(const std::string&)> warn;
};

// Opens a folder, which is made if it is missing, and removes what nobody refers to. `files`: in place of those of
// FOLDER/parts, for tests. Errors: kInvalidArgument (the folder cannot be used, or another process uses it), kIo.
Result<std::unique_ptr<BlobStore>> open_disk_store(const DiskStoreOptions& options,
                                                   std::unique_ptr<BlobFiles> files = nullptr);

}  // namespace kvasir

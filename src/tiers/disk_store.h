// Blobs in a folder: one file each, and a catalogue (SQLite) that lists the complete files.
//
//   FOLDER/lock            held by the process that uses the folder
//   FOLDER/catalogue.db    a row for each blob: keys, bytes, when it was used
//   FOLDER/parts/*.part    the blobs; a file without a row is removed when the folder is opened
//
// A file is made durable before its row is written: a process killed at any moment leaves complete blobs, and files
// without a row. Bytes are bounded: the least recently used blobs are evicted first.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tiers/blob_files.h"
#include "tiers/blob_store.h"

namespace kvasir {

struct DiskStoreOptions {
  std::string folder;
  std::uint64_t capacity = 0;  // most bytes of all blobs
  // Gets one line for each problem, on any thread. May be empty.
  std::function<void(const std::string&)> warn;
};

// Opens a folder, which is made if missing, and removes files without a row. `files`: replaces FOLDER/parts, for tests.
// Errors: kInvalidArgument (the folder cannot be used, or another process uses it), kIo.
Result<std::unique_ptr<BlobStore>> open_disk_store(const DiskStoreOptions& options,
                                                   std::unique_ptr<BlobFiles> files = nullptr);

}  // namespace kvasir

// Packed weights in a file: packed once, then mapped by every process that runs the model, which share the memory.
//
//   header      4,096 bytes: what the weights are of, and the header's own hash
//   weights     as Backend::load leaves them
//
// A file is named after the model and the packing, so one folder serves many. It appears whole or not at all, and never
// changes. It belongs to a model file: if that file's size or modification time differ from those noted, the model's
// weights are compared by checksum (XXH3-128). A split model has the file of the whole model, noted by the sizes and
// times of all its parts. The packed weights have no checksum of their own: the file is trusted like the model file.
// Thread-safety: one caller at a time. Processes that make files in one folder wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir {

class WeightFile {
 public:
  struct Model {
    std::vector<gguf::Part> files;      // the opened model file, or all parts of a split one
    Hash128 identity;                   // of its metadata, and of which rows are packed where
    std::function<Hash128()> checksum;  // of all weights' data; takes as long as reading it
    std::string packing;                // WeightPacking::name: 1 to 31 bytes
    std::uint64_t bytes = 0;            // of the packed weights
  };

  // Maps the model's file in `folder` read-only, and makes the folder and those above it if missing. Without a file
  // that belongs to the model, makes room for one, which complete() puts in place. Errors: kInvalidArgument if `folder`
  // is not a folder, and for a file that other users may change; the system's; kResourceExhausted for a full disk.
  static Result<std::unique_ptr<WeightFile>> open(const std::string& folder, const Model& model);
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;
  // Removes a file that was not completed.
  ~WeightFile();

  // Returns whether the weights are present; otherwise the caller must write them.
  bool is_complete() const { return complete_; }
  std::byte* weights() { return data_ + kHeaderBytes; }

  // Makes the written weights durable and renames the file to its name. REQUIRES: not complete. Errors: kDataLoss if
  // the model file was modified since it was opened; the system's.
  Status complete();

  static constexpr std::size_t kHeaderBytes = 4096;

 private:
  struct Header;
  WeightFile(const std::string& folder, Model model);

  std::uint64_t file_bytes() const { return kHeaderBytes + model_.bytes; }
  Status lock_folder();
  void unlock_folder();
  Status check_owner(const std::string& path, int descriptor) const;
  Status map_existing();
  Status make();
  Status map(int descriptor, int protection);

  std::string folder_;
  std::string path_;
  std::string partial_;  // the name before it is complete
  Model model_;
  std::byte* data_ = nullptr;
  int folder_descriptor_ = -1;  // locked while a file is looked up or made
  int descriptor_ = -1;         // of the partial file
  bool complete_ = false;
};

}  // namespace kvasir

// Packed weights in a file: packed once, then mapped by every process that runs the model, which share the memory.
//
//   header      4,096 bytes: what the weights are of, and the header's own checksum
//   weights     as Backend::load leaves them
//
// A file is named after the model and the packing, so one folder serves many. It appears whole or not at all. It
// belongs to the bytes of the model file: where size and time of change are not those that were noted, all bytes are
// compared by checksum (XXH3-128). Thread-safety: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/hash.h"
#include "kvasir/status.h"

namespace kvasir {

class WeightFile {
 public:
  struct Model {
    std::string path;                   // of the model file
    Hash128 fingerprint;                // LoadedModel::fingerprint
    std::function<Hash128()> checksum;  // of all that the weights are made of; takes as long as reading it
    std::string packing;                // Backend::packing_id, at most 31 bytes
    std::uint64_t bytes = 0;            // of the packed weights
  };

  // Maps the model's file in `folder`, read-only; or where there is none, or one that does not belong to the model,
  // makes room for one, which complete() puts in its place. Errors: kInvalidArgument for what is no folder; the
  // system's, kResourceExhausted for a full disk.
  static Result<std::unique_ptr<WeightFile>> open(const std::string& folder, const Model& model);
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;
  ~WeightFile();

  // Whether the weights are there already. Otherwise they are to be written.
  bool is_complete() const { return complete_; }
  std::byte* weights() { return data_ + kHeaderBytes; }

  // Makes what was written durable and gives it its name. REQUIRES: not complete. Errors: as open.
  Status complete();

  static constexpr std::size_t kHeaderBytes = 4096;

 private:
  struct Header;
  WeightFile(std::string folder, std::string path, Model model)
      : folder_(std::move(folder)), path_(std::move(path)), model_(std::move(model)) {}

  std::uint64_t file_bytes() const { return kHeaderBytes + model_.bytes; }
  // What the header of the model's file says, but for the checksum of the model.
  Result<Header> new_header() const;
  Status map_existing();
  Status make();
  Status map(int protection);
  Status give_name();

  std::string folder_;
  std::string path_;
  Model model_;
  std::byte* data_ = nullptr;
  int descriptor_ = -1;
  std::string temporary_;  // the file's name while it is incomplete, on file systems where it needs one
  bool complete_ = false;
};

}  // namespace kvasir

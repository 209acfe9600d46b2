// Reads the keys of a model family from a GGUF header: those that begin with the architecture's name.
// Thread-safety: none; one reader belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir {

// Refuses the file of an adapter where a model's is expected. Errors: kInvalidArgument.
Status refuse_adapter(const gguf::File& file);

class Keys {
 public:
  // `file` outlives the object.
  Keys(const gguf::File* file, std::string_view architecture)
      : file_(*file), prefix_(std::string(architecture) + ".") {}

  const gguf::File& file() const { return file_; }
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.find(name(key)) != nullptr; }

  // A whole number from 1 to `most`. Errors: kDataLoss where the key is absent or has another value.
  Result<int> positive(std::string_view key, std::uint64_t most);
  Result<int> positive_or(std::string_view key, std::uint64_t most, int otherwise);
  // Errors of these and of the readers below: kDataLoss where the key is absent or of another type.
  Result<double> number(std::string_view key);
  Result<bool> truth(std::string_view key);
  Result<std::uint64_t> count(std::string_view key);
  Result<std::vector<std::int64_t>> list(std::string_view key);  // of integers or bools
  // A number from 0 to `most` for each layer: a list of integers or bools, which may go on for layers that are not run,
  // or one number for all. `otherwise`: where the key is absent.
  Result<std::vector<int>> of_layers(std::string_view key, int layers, int most, int otherwise);

  // Refuses features that would change the results but that nobody has read: no answer is better than a wrong one.
  // Errors: kUnsupported, which names the key.
  Status refuse_other_features() const;

 private:
  const gguf::File& file_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;  // keys without their prefix
};

}  // namespace kvasir
